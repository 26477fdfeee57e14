package faults

import (
	"errors"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// outage is how long the key-value store is away.
const outage = 10 * time.Second

// The store goes away under traffic and comes back with what it had: browsers
// are told, come back by themselves, and nothing that was acknowledged is lost.
func TestRedisOutageUnderTraffic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ goes, returns func(*servers.Redis) }{
		"killed": {(*servers.Redis).Kill, (*servers.Redis).Start},
		"hangs":  {(*servers.Redis).Freeze, (*servers.Redis).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, redis := realStores(t, servers.RedisDurable())
			env["SESSION_MAX_FRAMES_PER_SECOND"], env["SESSION_PING_INTERVAL"] = "10000", "1s"
			p := newPlace(t, env)
			rt := talk.StartRuntime(t, p.env)
			idle, _ := p.page(t)
			idleCh := talk.Accept(t, rt)
			_ = idle.Conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
			seen := make(chan error, 1)
			go func() {
				_, _, err := idle.Conn.ReadMessage()
				seen <- err
			}()

			s := newStorm(t, p, 20, 100)
			s.instances = []*boot.Instance{p.Instance}
			s.rage(p.env, 2*time.Minute, func() {
				c.goes(redis)
				time.Sleep(outage)
				c.returns(redis)
				if err := idleCh.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte("{}")}); err != nil {
					t.Errorf("send to the idle browser: %v", err)
				}
			})
			s.settle(p.env)
			if s.refused.Load() == 0 || s.away.Load() == 0 {
				t.Errorf("%d frames were refused with an error and %d sockets closed with 4005", s.refused.Load(), s.away.Load())
			}
			// A socket that asked for nothing meanwhile may have stayed.
			if err := <-seen; err != nil && !websocket.IsCloseError(err, 4002, 4005) {
				t.Errorf("the idle socket ended with %v", err)
			}
		})
	}
}

// A store that comes back empty has lost what was in it. Browsers are told so,
// and the session goes on in a new life of its channel.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	env, redis := realStores(t)
	p := newPlace(t, env)
	b, token, ch := p.conversation(t)
	cursor := said(t, b, ch, 1, 3)[2]
	redis.Kill()
	redis.Start()
	if code := b.CloseCode(); code < 4000 || code >= 4500 {
		t.Errorf("closed with %d", code)
	}
	poll.Until(t, "the browser is let in again", func() bool {
		conn, _, err := talk.Dial(t, p.Instance, token, "?streamId="+cursor)
		if err == nil {
			b = &talk.Browser{Conn: conn, Session: b.Session, T: t}
		}
		return err == nil
	})
	fresh := b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
	b.Expect(`{"recovered":false,"count":0}`)
	for {
		_, err := ch.Receive(t.Context())
		if errors.Is(err, callruntime.ErrLost) || errors.Is(err, callruntime.ErrClaimLost) {
			break
		}
		if err != nil {
			t.Fatalf("the runtime that had it: %v", err)
		}
	}
	next := talk.Accept(t, talk.StartRuntime(t, p.env))
	goesOn(t, b, next)
	b.Cut()
	b = talk.Connect(t, p.Instance, b.Session, token, "?streamId="+fresh)
	b.Expect(`"event":"ready"`, `"resumed":true`)
	b.Expect("so am I")
	b.Expect(`{"recovered":true,"count":1}`)
}
