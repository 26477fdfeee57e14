package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
)

// chatPayload is the payload of all frames.
const chatPayload = `{"text":"I would like to know when my parcel arrives, please."}`

func chatFrame(sessionID, direction string) string {
	return fmt.Sprintf(`{"type":"chat","sessionId":"%s","messageId":"%s","timestamp":%d,"direction":"%s","chat":%s}`,
		sessionID, uuid.NewString(), time.Now().UnixMilli(), direction, chatPayload)
}

// framesIn compares frames from browsers, acknowledged after they are appended to
// the runtime stream, with a socket that calls XADD for each frame.
func framesIn(at *site, s settings) {
	t, peer := at.startTelapi(), at.startPeer("xadd")
	defer t.kill()
	defer peer.kill()
	var conns []*websocket.Conn
	// Every round uses new sessions, because a runtime stream without a reader
	// accepts only 10,000 entries.
	open := func() (sockets []pipeline) {
		closeAll(conns)
		sockets, conns = openSockets([]*telapi{t}, s.sockets, s.connections)
		return sockets
	}
	baseline := make([]pipeline, s.sockets)
	parallel(s.sockets, s.connections, func(i int) {
		baseline[i] = chatPipeline(dial(fmt.Sprintf("ws://%s/%d", peer.line, i)), "ses_"+uuid.NewString())
	})
	fmt.Printf("browser to runtime stream, acknowledged; %d sockets with %d frames in flight\n", s.sockets, s.inFlight)
	at.compare(s, t.process, open, peer, baseline, "plain XADD")
}

// framesOut compares durable messages from a runtime with a socket that forwards published
// messages. A sender does not wait for a message before it sends the next, like a runtime that
// streams the output of a model. Both have the same number of frames in flight.
func framesOut(at *site, s settings) {
	t, peer := at.startTelapi(), at.startPeer("forward")
	defer t.kill()
	defer peer.kill()
	client := must(rueidis.NewClient(at.storeOptions()))
	defer client.Close()
	runtime := t.connectRuntime()
	defer runtime.Close()
	ours, baseline := make([]pipeline, s.sockets), make([]pipeline, s.sockets)
	var sockets sync.Map // by session
	parallel(s.sockets, s.connections, func(i int) {
		token, conn := t.openSession()
		sockets.Store(token.SessionID, conn)
		baseline[i] = publishPipeline(peer.line, fmt.Sprintf("/%d", i), client)
	})
	for i := range ours {
		c := must(runtime.Accept(context.Background(), wire.Accept{}))
		conn, _ := sockets.Load(c.ID)
		ours[i] = asyncPipeline(conn.(*websocket.Conn), func() error {
			return c.Send(context.Background(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(chatPayload)})
		})
	}
	fmt.Printf("runtime to browser, durable messages; %d channels with %d frames in flight\n", s.sockets, s.inFlight)
	at.compare(s, t.process, func() []pipeline { return ours }, peer, baseline, "plain PUBLISH")
}

// compare warms both servers up, measures them alternately and prints the result.
// open returns the pipelines for a round of telapi.
func (s *site) compare(opts settings, telapi *process, open func() []pipeline, peer *process, baseline []pipeline, name string) {
	measure := func(rounds int, span time.Duration) comparison {
		round := func(p *process, open func() []pipeline) func() result {
			return func() result {
				pipelines := open()
				return s.measureCPU([]*process{p}, func() result { return run(pipelines, opts.inFlight, span) })
			}
		}
		return interleave(rounds, round(telapi, open), round(peer, func() []pipeline { return baseline }))
	}
	measure(1, opts.span/4)
	c := measure(opts.rounds, opts.span)
	c.print("frames", name, "(target: at least 0.80)")
}

// chatPipeline sends chat frames from a browser and receives acknowledgements.
func chatPipeline(conn *websocket.Conn, sessionID string) pipeline {
	return pipeline{
		send:    func() error { return conn.WriteMessage(websocket.TextMessage, []byte(chatFrame(sessionID, "to_ari"))) },
		receive: func() error { return readAck(conn) },
	}
}

// asyncPipeline does not wait in send for the result.
func asyncPipeline(conn *websocket.Conn, send func() error) pipeline {
	results := make(chan error, 1024)
	return pipeline{
		send: func() error {
			go func() { results <- send() }()
			return nil
		},
		receive: func() error {
			err := <-results
			_, failure := read(conn)
			return cmp.Or(err, failure)
		},
	}
}

// publishPipeline publishes frames that the baseline server forwards to a socket.
func publishPipeline(addr, topic string, client rueidis.Client) pipeline {
	conn := dial("ws://" + addr + topic)
	publish := func() (receivers int64, err error) {
		message := chatFrame("ses_"+uuid.Nil.String(), "to_browser")
		return client.Do(context.Background(), client.B().Publish().Channel(topic).Message(message).Build()).AsInt64()
	}
	await("the baseline server subscribes", func() bool { return must(publish()) > 0 })
	must(read(conn))
	return asyncPipeline(conn, func() error {
		_, err := publish()
		return err
	})
}
