package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// chatPayload is the payload of all frames.
const chatPayload = `{"text":"I would like to know when my parcel arrives, please."}`

// framesIn compares frames from browsers, acknowledged after they are appended to
// the runtime stream, with a socket that calls XADD for each frame.
func framesIn(at *site, s settings) error {
	t, peer, err := at.startBoth("xadd")
	if err != nil {
		return err
	}
	defer t.kill()
	defer peer.stop()
	ours, baseline, conns := make([]pipeline, s.sockets), make([]pipeline, s.sockets), make([]*websocket.Conn, s.sockets)
	// Every round uses new sessions, because a runtime stream without a reader
	// accepts only 10,000 entries.
	prepare := func() error {
		closeAll(conns)
		_, err := parallel(s.sockets, s.connections, func(i int) error {
			token, conn, err := t.openSession()
			conns[i], ours[i] = conn, chatPipeline(conn, token.SessionID)
			return err
		})
		return err
	}
	if _, err := parallel(s.sockets, s.connections, func(i int) error {
		conn, err := dial(fmt.Sprintf("ws://%s/%d", peer.line, i))
		baseline[i] = chatPipeline(conn, "ses_"+uuid.NewString())
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("browser to runtime stream, acknowledged; %d sockets with %d frames in flight\n", s.sockets, s.inFlight)
	return at.compare(s, t.process, ours, prepare, peer, baseline, "plain XADD")
}

// framesOut compares durable messages from a runtime with a socket that forwards
// published messages.
func framesOut(at *site, s settings) error {
	return at.measureSend(s, "durable messages", func(c *calls.Channel) (wait func() error) {
		return c.SendAsync(context.Background(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(chatPayload)})
	})
}

// audioOut compares audio frames, which are not stored, with the same baseline.
func audioOut(at *site, s settings) error {
	return at.measureSend(s, "audio", func(c *calls.Channel) (wait func() error) {
		err := c.SendAudio(context.Background(), []byte(chatPayload))
		return func() error { return err }
	})
}

// measureSend runs one sender per channel for telapi and for the baseline. A
// sender does not wait for a frame before it sends the next, like a runtime that
// streams the output of a model. Both have the same number of frames in flight.
func (s *site) measureSend(opts settings, what string, send func(*calls.Channel) (wait func() error)) error {
	t, peer, err := s.startBoth("forward")
	if err != nil {
		return err
	}
	defer t.kill()
	defer peer.stop()
	client, err := s.redis()
	if err != nil {
		return err
	}
	defer client.Close()
	runtime, err := calls.New(calls.Options{Store: storeOptions(s.redisURL), Name: "bench"})
	if err != nil {
		return err
	}
	defer runtime.Close()

	ours, baseline := make([]pipeline, opts.sockets), make([]pipeline, opts.sockets)
	if _, err := parallel(opts.sockets, opts.connections, func(i int) (err error) {
		if ours[i], err = t.channelPipeline(runtime, send); err == nil {
			baseline[i], err = publishPipeline(peer.line, fmt.Sprintf("/%d", i), client)
		}
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("runtime to browser, %s; %d channels with %d frames in flight\n", what, opts.sockets, opts.inFlight)
	return s.compare(opts, t.process, ours, nothing, peer, baseline, "plain PUBLISH")
}

// startBoth starts telapi and a baseline server with the same Redis.
func (s *site) startBoth(peer string) (*telapi, *process, error) {
	if s.redisURL == "" {
		return nil, nil, fmt.Errorf("redis-server is not installed")
	}
	p, err := startPeer(peer, strings.NewReader(s.redisURL))
	if err != nil {
		return nil, nil, err
	}
	t, err := s.startTelapi()
	if err != nil {
		p.stop()
	}
	return t, p, err
}

// compare warms both servers up, measures them alternately and prints the result.
// prepare runs before each round of telapi.
func (s *site) compare(opts settings, telapi *process, ours []pipeline, prepare func() error, peer *process, baseline []pipeline, name string) error {
	round := func(p *process, pipelines []pipeline, prepare func() error, span time.Duration) func() (result, error) {
		return func() (result, error) {
			if err := prepare(); err != nil {
				return result{}, err
			}
			return s.measureCPU([]*process{p}, func() (result, error) { return run(pipelines, opts.inFlight, span) })
		}
	}
	measure := func(rounds int, span time.Duration) (comparison, error) {
		return interleave(rounds, round(telapi, ours, prepare, span), round(peer, baseline, nothing, span))
	}
	if _, err := measure(1, opts.span/4); err != nil {
		return err
	}
	c, err := measure(opts.rounds, opts.span)
	if err == nil {
		c.print("frames", name, "frames", "(target: at least 0.80)")
	}
	return err
}

func nothing() error { return nil }

// measureCPU adds the CPU time per unit of the servers, the stores and bench to a
// result.
func (s *site) measureCPU(servers []*process, run func() (result, error)) (result, error) {
	times := func() []float64 {
		return []float64{cpuTimes(servers), cpuTimes(s.redisProcesses), cpuTime(os.Getpid()), cpuTimeOfChildren(s.postgres)}
	}
	before, start := times(), time.Now()
	r, err := run()
	units := r.perSecond * time.Since(start).Seconds()
	for i, after := range times() {
		r.costs = append(r.costs, (after-before[i])*1e6/units)
	}
	return r, err
}

// chatPipeline sends chat frames from a browser and receives acknowledgements.
func chatPipeline(conn *websocket.Conn, sessionID string) pipeline {
	send := func() error {
		return conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil,
			`{"type":"chat","sessionId":"%s","messageId":"%s","timestamp":%d,"direction":"to_ari","chat":%s}`,
			sessionID, uuid.NewString(), time.Now().UnixMilli(), chatPayload))
	}
	return pipeline{send, func() error { return readAck(conn) }}
}

// openSession creates a session and opens its socket.
func (t *telapi) openSession() (sessionToken, *websocket.Conn, error) {
	token, err := t.issue()
	if err != nil {
		return token, nil, err
	}
	conn, err := t.open(token)
	return token, conn, err
}

// channelPipeline sends frames from a runtime to the socket of a new session.
func (t *telapi) channelPipeline(runtime *calls.Runtime, send func(*calls.Channel) (wait func() error)) (pipeline, error) {
	token, conn, err := t.openSession()
	if err != nil {
		return pipeline{}, err
	}
	channel, err := runtime.Attach(context.Background(), token.SessionID)
	return asyncPipeline(conn, func() (wait func() error) { return send(channel) }), err
}

// asyncPipeline does not wait in send for the result of begin.
func asyncPipeline(conn *websocket.Conn, begin func() (wait func() error)) pipeline {
	results := make(chan func() error, 1024)
	return pipeline{
		send:    func() error { results <- begin(); return nil },
		receive: func() error { return cmp.Or((<-results)(), read(conn)) },
	}
}

// publishPipeline publishes frames that the baseline server forwards to a socket.
func publishPipeline(addr, topic string, client rueidis.Client) (pipeline, error) {
	conn, err := dial("ws://" + addr + topic)
	if err != nil {
		return pipeline{}, err
	}
	publish := func() (receivers int64, err error) {
		message := fmt.Sprintf(`{"type":"chat","sessionId":"ses_%s","messageId":"%s","timestamp":%d,"direction":"to_browser","chat":%s}`,
			uuid.Nil, uuid.NewString(), time.Now().UnixMilli(), chatPayload)
		return client.Do(context.Background(), client.B().Publish().Channel(topic).Message(message).Build()).AsInt64()
	}
	// Wait until the server has subscribed.
	for receivers := int64(0); receivers == 0 && err == nil; {
		receivers, err = publish()
	}
	if err == nil {
		err = read(conn)
	}
	return asyncPipeline(conn, func() (wait func() error) {
		done := make(chan error, 1)
		go func() { _, err := publish(); done <- err }()
		return func() error { return <-done }
	}), err
}
