package faults

import (
	"errors"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// outage is long enough for leases to expire.
const outage = 10 * time.Second

// Redis fails under traffic and comes back with its data. Browsers get errors or
// close frames, reconnect, and no acknowledged message is lost.
func TestRedisOutageUnderTraffic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ fail, recover func(*testkit.Redis) }{
		"killed": {(*testkit.Redis).Kill, (*testkit.Redis).Start},
		"hangs":  {(*testkit.Redis).Freeze, (*testkit.Redis).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, redis := harness.RealStores(t, testkit.RedisDurable())
			env["SESSION_MAX_FRAMES_PER_SECOND"], env["SESSION_PING_INTERVAL"] = "10000", "1s"
			svc := startService(t, env)
			rt := harness.StartRuntime(t, svc.env)
			idle, _ := svc.connect(t)
			idleCh := harness.Accept(t, rt)
			_ = idle.Conn.SetReadDeadline(time.Now().Add(2 * time.Minute))
			ended := make(chan error, 1)
			go func() {
				_, _, err := idle.Conn.ReadMessage()
				ended <- err
			}()

			s := newStorm(t, svc, 20, 100)
			s.instances = []*harness.Instance{svc.Instance}
			s.run(svc.env, func() {
				c.fail(redis)
				leasesExpired := time.Now().Add(outage)
				testkit.Until(t, "frames are rejected and sockets closed", func() bool {
					return s.rejected.Load() > 0 && s.closed.Load() > 0 && time.Now().After(leasesExpired)
				})
				c.recover(redis)
				if err := idleCh.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte("{}")}); err != nil {
					t.Errorf("send to the idle browser: %v", err)
				}
			})
			s.verify(svc.env)
			// A socket without traffic may survive the outage.
			if err := <-ended; err != nil && !websocket.IsCloseError(err, 4002, 4005) {
				t.Errorf("idle socket ended with %v, want close code 4002 or 4005", err)
			}
		})
	}
}

// Redis comes back without its data. Browsers are notified that history is lost,
// and the session continues in a new epoch of its channel.
func TestRedisRestartsEmpty(t *testing.T) {
	t.Parallel()
	env, redis := harness.RealStores(t)
	svc := startService(t, env)
	b, token, ch := svc.conversation(t)
	cursor := sendNumbered(t, b, ch, 1, 3)[2]
	redis.Kill()
	redis.Start()
	if code := b.CloseCode(); code < 4000 || code >= 4500 {
		t.Errorf("close code %d, want one that allows reconnecting", code)
	}
	testkit.Until(t, "the browser reconnects", func() bool {
		conn, _, err := harness.Dial(t, svc.Instance, token, "?streamId="+cursor)
		if err == nil {
			b = &harness.Browser{Conn: conn, Session: b.Session, T: t}
		}
		return err == nil
	})
	cursor = b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
	b.Expect(`{"recovered":false,"count":0}`)
	for {
		_, err := ch.Receive(t.Context())
		if errors.Is(err, calls.ErrLost) || errors.Is(err, calls.ErrClaimLost) {
			break
		}
		if err != nil {
			t.Fatalf("previous runtime: %v, want ErrLost or ErrClaimLost", err)
		}
	}
	next := harness.Accept(t, harness.StartRuntime(t, svc.env))
	checkConversation(t, b, next)
	b.Cut()
	b = harness.Connect(t, svc.Instance, b.Session, token, "?streamId="+cursor)
	b.Expect(`"event":"ready"`, `"resumed":true`)
	b.Expect("here too")
	b.Expect(`{"recovered":true,"count":1}`)
}
