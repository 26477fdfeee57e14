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

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

// said is what frames carry.
const said = `{"text":"I would like to know when my parcel arrives, please."}`

// framesIn measures frames of browsers, each acknowledged once it is on the
// runtime's stream, against a socket that does one XADD per frame and answers.
func framesIn(at *site, s settings) error {
	t, peer, err := at.contestants("xadd")
	if err != nil {
		return err
	}
	defer t.kill()
	defer peer.stop()
	ours, bare, conns := make([]lane, s.sockets), make([]lane, s.sockets), make([]*websocket.Conn, s.sockets)
	// Sessions are new in every round: nobody reads what they send, and a stream
	// that is not read takes 10,000 frames and then no more.
	enter := func() error {
		closeAll(conns)
		_, err := many(s.sockets, s.connections, func(i int) error {
			k, conn, err := t.enter()
			conns[i], ours[i] = conn, talker(conn, k.SessionID)
			return err
		})
		return err
	}
	if _, err := many(s.sockets, s.connections, func(i int) error {
		conn, err := dial(fmt.Sprintf("ws://%s/%d", peer.line, i))
		bare[i] = talker(conn, "ses_"+uuid.NewString())
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("browser to runtime's stream, acknowledged; %d sockets, %d frames in flight on each\n", s.sockets, s.inFlight)
	return at.race(s, t.process, ours, enter, peer, bare, "bare with XADD")
}

// framesOut measures messages of the runtime, which are kept until the browser
// has them, against a socket that forwards what its sender publishes.
func framesOut(at *site, s settings) error {
	return at.speak(s, "kept messages", func(c *callruntime.Channel) (wait func() error) {
		return c.SendAsync(context.Background(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(said)})
	})
}

// audioOut does the same for audio, which is never kept.
func audioOut(at *site, s settings) error {
	return at.speak(s, "audio", func(c *callruntime.Channel) (wait func() error) {
		err := c.SendAudio(context.Background(), []byte(said))
		return func() error { return err }
	})
}

// speak has one sender for each channel on either side, which begins a frame
// while others are under way, as a runtime that streams what a model says, and
// hears of each in the end. Neither is further ahead of its browser than the other.
func (s *site) speak(how settings, what string, send func(*callruntime.Channel) (wait func() error)) error {
	t, peer, err := s.contestants("forward")
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
	opts, err := rueidis.ParseURL(s.redisURL)
	if err != nil {
		return err
	}
	runtime, err := callruntime.New(callruntime.Options{Store: opts, Name: "bench"})
	if err != nil {
		return err
	}
	defer runtime.Close()

	ours, bare := make([]lane, how.sockets), make([]lane, how.sockets)
	if _, err := many(how.sockets, how.connections, func(i int) (err error) {
		if ours[i], err = t.listener(runtime, send); err == nil {
			bare[i], err = bareListener(peer.line, fmt.Sprintf("/%d", i), client)
		}
		return err
	}); err != nil {
		return err
	}
	fmt.Printf("runtime to browser, %s; %d channels with a sender and a socket each, %d frames in flight on each\n", what, how.sockets, how.inFlight)
	return s.race(how, t.process, ours, nothing, peer, bare, "bare with PUBLISH")
}

// contestants are the service and a peer that uses the same Redis.
func (s *site) contestants(peer string) (*telapi, *process, error) {
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

// race warms both up and measures them in turns, ours each time after it has been
// prepared.
func (s *site) race(how settings, telapi *process, ours []lane, prepare func() error, peer *process, bare []lane, name string) error {
	run := func(p *process, lanes []lane, prepare func() error, span time.Duration) func() (result, error) {
		return func() (result, error) {
			if err := prepare(); err != nil {
				return result{}, err
			}
			return s.charge(p, func() (result, error) { return drive(lanes, how.inFlight, span) })
		}
	}
	compare := func(rounds int, span time.Duration) (duel, error) {
		return interleave(rounds, run(telapi, ours, prepare, span), run(peer, bare, nothing, span))
	}
	if _, err := compare(1, how.span/4); err != nil {
		return err
	}
	d, err := compare(how.rounds, how.span)
	if err == nil {
		d.print("frames", name, "frames", "(at least 0.80 wanted)")
	}
	return err
}

func nothing() error { return nil }

// charge measures what each unit costs the server, Redis and bench itself.
func (s *site) charge(p *process, run func() (result, error)) (result, error) {
	pids := []int{p.cmd.Process.Pid, s.redisProcess.cmd.Process.Pid, os.Getpid()}
	var before []float64
	for _, pid := range pids {
		before = append(before, spentBy(pid))
	}
	began := time.Now()
	r, err := run()
	units := r.perSecond * time.Since(began).Seconds()
	for i, pid := range pids {
		r.costs = append(r.costs, (spentBy(pid)-before[i])*1e6/units)
	}
	return r, err
}

// talker sends chat frames, each under an id of its own, and awaits as many
// frames in return.
func talker(conn *websocket.Conn, sessionID string) lane {
	send := func() error {
		return conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil,
			`{"type":"chat","sessionId":"%s","messageId":"%s","timestamp":%d,"direction":"to_ari","chat":%s}`,
			sessionID, uuid.NewString(), time.Now().UnixMilli(), said))
	}
	return lane{send, func() error { return readAck(conn) }}
}

// enter opens a session and its socket.
func (t *telapi) enter() (ticket, *websocket.Conn, error) {
	k, err := t.issue()
	if err != nil {
		return k, nil, err
	}
	conn, err := t.open(k)
	return k, conn, err
}

// listener is a channel with its socket.
func (t *telapi) listener(runtime *callruntime.Runtime, send func(*callruntime.Channel) (wait func() error)) (lane, error) {
	k, conn, err := t.enter()
	if err != nil {
		return lane{}, err
	}
	channel, err := runtime.Attach(context.Background(), k.SessionID)
	return speaking(conn, func() (wait func() error) { return send(channel) }), err
}

// speaking is a lane whose sender does not wait for what it sends.
func speaking(conn *websocket.Conn, begin func() (wait func() error)) lane {
	receipts := make(chan func() error, 1024)
	return lane{
		send:    func() error { receipts <- begin(); return nil },
		receive: func() error { return cmp.Or((<-receipts)(), read(conn)) },
	}
}

func bareListener(addr, topic string, client rueidis.Client) (lane, error) {
	conn, err := dial("ws://" + addr + topic)
	if err != nil {
		return lane{}, err
	}
	publish := func() (heard int64, err error) {
		message := fmt.Sprintf(`{"type":"chat","sessionId":"ses_%s","messageId":"%s","timestamp":%d,"direction":"to_browser","chat":%s}`,
			uuid.Nil, uuid.NewString(), time.Now().UnixMilli(), said)
		return client.Do(context.Background(), client.B().Publish().Channel(topic).Message(message).Build()).AsInt64()
	}
	// The subscription is there when somebody has heard something.
	for heard := int64(0); heard == 0 && err == nil; {
		heard, err = publish()
	}
	if err == nil {
		err = read(conn)
	}
	return speaking(conn, func() (wait func() error) {
		done := make(chan error, 1)
		go func() { _, err := publish(); done <- err }()
		return func() error { return <-done }
	}), err
}
