package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/harness"
)

// storm is a set of clients that lose their connections all the time.
type storm struct {
	t         *testing.T
	sessions  int
	each      int // messages per session and direction
	instances []*harness.Instance
	clients   []*client

	acknowledged, cuts atomic.Int64
	halfway            chan struct{} // closed when half of the messages are acknowledged
	rejected, closed   atomic.Int64  // frames rejected and sockets closed because of an outage
	mu                 sync.Mutex
	received           map[string][]string // message IDs that reached a runtime, by session
}

func (s *storm) acknowledge() {
	if s.acknowledged.Add(1) == int64(s.sessions*s.each/2) {
		close(s.halfway)
	}
}

// startRuntime starts a runtime that replies to every message with a number.
func (s *storm) startRuntime(ctx context.Context, env harness.Env, running *sync.WaitGroup) {
	r := harness.StartRuntime(s.t, env)
	for range 2 {
		running.Go(func() {
			for {
				ch, err := r.Accept(ctx, nil)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					s.t.Errorf("accept: %v", err)
					return
				}
				running.Go(func() {
					if err := s.reply(ctx, ch); err != nil && ctx.Err() == nil {
						s.t.Errorf("session %s: %v", ch.ID, err)
					}
				})
			}
		})
	}
}

func (s *storm) reply(ctx context.Context, ch *calls.Channel) error {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	for n := 0; ; {
		d, err := ch.Receive(ctx)
		if err != nil {
			return err
		}
		if d.Entry.Kind == wire.KindFrame {
			s.mu.Lock()
			s.received[ch.ID] = append(s.received[ch.ID], d.Entry.Message.MessageID)
			s.mu.Unlock()
			if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: fmt.Appendf(nil, `{"n":%d}`, n)}); err != nil {
				return err
			}
			n++
		}
		if n%10 == 0 {
			if err := ch.Commit(ctx, d.Position); err != nil {
				return err
			}
		}
	}
}

// run runs all clients until they are done, and inject once half of the messages
// are acknowledged.
func (s *storm) run(env harness.Env, inject func()) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	var runtimes, clients sync.WaitGroup
	for range 2 {
		s.startRuntime(ctx, env, &runtimes)
	}
	for _, c := range s.clients {
		clients.Go(func() {
			if err := c.run(ctx); err != nil {
				s.t.Errorf("session %s: %v", c.session, err)
				cancel()
			}
		})
	}
	clients.Go(func() {
		select {
		case <-s.halfway:
			inject()
		case <-ctx.Done():
		}
	})
	clients.Wait()
	cancel()
	runtimes.Wait()
}

// verify checks that every message is in the runtime stream and was received by a
// runtime exactly once and in order.
func (s *storm) verify(env harness.Env) {
	r := harness.StartRuntime(s.t, env)
	var sockets, resumed, resent int
	for _, c := range s.clients {
		entries, err := r.Entries(s.t.Context(), c.session, "", 100*s.each)
		if err != nil {
			s.t.Fatal(err)
		}
		var stored []string
		for _, d := range entries {
			if d.Entry.Kind == wire.KindFrame {
				stored = append(stored, d.Entry.Message.MessageID)
			}
		}
		if want := fmt.Sprint(c.ids); fmt.Sprint(stored) != want || fmt.Sprint(s.received[c.session]) != want {
			s.t.Errorf("session %s: %d messages were acknowledged, %d are in the stream, %d were received; want the same messages in the same order",
				c.session, len(c.ids), len(stored), len(s.received[c.session]))
		}
		sockets, resumed, resent = sockets+c.sockets, resumed+c.resumed, resent+c.resent
	}
	s.t.Logf("%d messages each way, %d sockets cut, %d opened, %d resumed, %d messages received twice",
		s.acknowledged.Load(), s.cuts.Load(), sockets, resumed, resent)
}

func newStorm(t *testing.T, svc *service, sessions, each int) *storm {
	s := &storm{t: t, sessions: sessions, each: each, halfway: make(chan struct{}), received: map[string][]string{}}
	for n := range sessions {
		id, token := svc.session(t, "duplicatePolicy", []string{"replace", "reject"}[n%2])
		s.clients = append(s.clients, &client{storm: s, session: id, token: token, seen: map[string]bool{}})
	}
	return s
}

// serve starts an instance as a separate process. With real stores it gets its own
// data directory.
func serve(t *testing.T, env harness.Env) (*harness.Instance, *harness.Process) {
	t.Helper()
	env = harness.Merge(harness.Env{"LOG_LEVEL": "warn", "DRAIN_DELAY": "0s"}, env)
	if env["REDIS_URL"] != "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return harness.Serve(t, env)
}

// Sockets are cut at random. Halfway one of two instances is killed and all
// subscriptions are lost. Every acknowledged message is in the runtime stream once
// and in order, and every reply reaches its browser once and in order.
func TestReconnectStorm(t *testing.T) {
	stores, redis := harness.RealStores(t)
	s, env := prepareStorm(t, stores, 200, 100)
	a, victim := serve(t, env)
	b, _ := serve(t, env)
	s.instances = []*harness.Instance{a, b}
	s.run(env, func() {
		_ = victim.Cmd.Process.Signal(syscall.SIGKILL)
		_, _ = redis.Do("CLIENT", "KILL", "TYPE", "pubsub") // ends all subscriptions
	})
	s.verify(env)
}

// The embedded engine serves one instance and is slower: it gets a quarter of the
// messages, and no instance is killed.
func TestReconnectStormOnEmbeddedEngine(t *testing.T) {
	s, env := prepareStorm(t, harness.Env{}, 100, 50)
	i, _ := serve(t, env)
	s.instances = []*harness.Instance{i}
	s.run(env, func() {})
	s.verify(env)
}

// prepareStorm creates the sessions on an instance and stops it.
func prepareStorm(t *testing.T, env harness.Env, sessions, each int) (*storm, harness.Env) {
	t.Helper()
	env["SESSION_MAX_FRAMES_PER_SECOND"], env["SESSION_PING_INTERVAL"] = "10000", "1s"
	svc := startService(t, env)
	s := newStorm(t, svc, sessions, each)
	if err := svc.Stop(); err != nil {
		t.Fatal(err)
	}
	return s, svc.env
}
