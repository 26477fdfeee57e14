package faults

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/contract"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// storm is many pages that talk and lose their sockets all the time.
type storm struct {
	t         *testing.T
	sockets   int
	each      int // messages of a session, each way
	instances []*boot.Instance
	pages     []*page

	acknowledged, cuts atomic.Int64
	refused, away      atomic.Int64 // frames that the store could not take, and sockets closed for it
	mu                 sync.Mutex
	heard              map[string][]string // message ids that reached a runtime, by session
}

// runtime answers every message with a number until the storm is over.
func (s *storm) runtime(ctx context.Context, env boot.Env, running *sync.WaitGroup) {
	r := talk.StartRuntime(s.t, env)
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
					if err := s.answer(ctx, ch); err != nil && ctx.Err() == nil {
						s.t.Errorf("session %s: %v", ch.ID, err)
					}
				})
			}
		})
	}
}

func (s *storm) answer(ctx context.Context, ch *callruntime.Channel) error {
	defer func() { _ = ch.Close(context.WithoutCancel(ctx)) }()
	for n := 0; ; {
		d, err := ch.Receive(ctx)
		if err != nil {
			return err
		}
		if d.Entry.Kind == wire.KindFrame {
			s.mu.Lock()
			s.heard[ch.ID] = append(s.heard[ch.ID], d.Entry.Message.MessageID)
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

// rage lets every page live to its end, and strike once half is said.
func (s *storm) rage(env boot.Env, within time.Duration, strike func()) {
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	var runtimes, pages sync.WaitGroup
	for range 2 {
		s.runtime(ctx, env, &runtimes)
	}
	for _, p := range s.pages {
		pages.Go(func() {
			if err := p.live(ctx); err != nil {
				s.t.Errorf("session %s: %v", p.session, err)
				cancel()
			}
		})
	}
	pages.Go(func() {
		half := int64(s.sockets * s.each / 2)
		for ; s.acknowledged.Load() < half && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		}
		strike()
	})
	pages.Wait()
	cancel()
	runtimes.Wait()
}

// settle compares what was acknowledged with what the runtimes heard and what
// stands on the streams.
func (s *storm) settle(env boot.Env) {
	r := talk.StartRuntime(s.t, env)
	var sockets, resumed, repeated int
	for _, p := range s.pages {
		entries, err := r.Entries(s.t.Context(), p.session, "", 100*s.each)
		if err != nil {
			s.t.Fatal(err)
		}
		var stored []string
		for _, d := range entries {
			if d.Entry.Kind == wire.KindFrame {
				stored = append(stored, d.Entry.Message.MessageID)
			}
		}
		if want := fmt.Sprint(p.ids); fmt.Sprint(stored) != want || fmt.Sprint(s.heard[p.session]) != want {
			s.t.Errorf("session %s: %d were acknowledged, %d are on the stream, %d were received, or their order differs",
				p.session, len(p.ids), len(stored), len(s.heard[p.session]))
		}
		sockets, resumed, repeated = sockets+p.sockets, resumed+p.resumed, repeated+p.repetitions
	}
	s.t.Logf("%d messages each way, %d sockets cut, %d opened, %d resumed, %d messages seen twice",
		s.acknowledged.Load(), s.cuts.Load(), sockets, resumed, repeated)
}

func newStorm(t *testing.T, p *place, sockets, each int) *storm {
	s := &storm{t: t, sockets: sockets, each: each, heard: map[string][]string{}}
	for n := range sockets {
		id, token := p.session(t, "duplicatePolicy", []string{"replace", "reject"}[n%2])
		s.pages = append(s.pages, &page{storm: s, session: id, token: token, seen: map[string]bool{}})
	}
	return s
}

// serve starts an instance as a process of its own, on a free port unless one is
// given.
func serve(t *testing.T, env boot.Env) (*boot.Instance, *boot.Process) {
	t.Helper()
	full := boot.Env{"TELAPI_PORT": fmt.Sprint(servers.FreePort(t)), "JWT_SECRET": boot.Secret, "LOG_FORMAT": "json", "LOG_LEVEL": "warn", "DRAIN_DELAY": "0s"}
	for name, value := range env {
		full[name] = value
	}
	if env["REDIS_URL"] != "" {
		full["DATA_DIR"] = t.TempDir()
	}
	proc := boot.StartProcess(t, full, "serve")
	i := &boot.Instance{URL: "http://127.0.0.1:" + full["TELAPI_PORT"], Client: contract.Client(t)}
	poll.Until(t, "healthy", func() bool {
		resp, err := i.Client.Get(i.URL + "/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return i, proc
}

// Sockets are cut at random, and in the middle one of two instances is killed
// and every subscription lost:
// every acknowledged message is on the runtime's stream once and in order, and
// every answer reaches its browser once and in order.
func TestReconnectStorm(t *testing.T) {
	stores, redis := realStores(t)
	s, env := brew(t, stores, 200, 100)
	a, victim := serve(t, env)
	b, _ := serve(t, env)
	s.instances = []*boot.Instance{a, b}
	s.rage(env, 2*time.Minute, func() {
		_ = victim.Cmd.Process.Signal(syscall.SIGKILL)
		_, _ = redis.Do("CLIENT", "KILL", "TYPE", "pubsub") // and nobody hears anything for a moment
	})
	s.settle(env)
}

// The same on the embedded engine, which is one instance and slower: a quarter
// of the messages, and nobody is killed.
func TestReconnectStormOnEmbeddedEngine(t *testing.T) {
	s, env := brew(t, boot.Env{}, 100, 50)
	i, _ := serve(t, env)
	s.instances = []*boot.Instance{i}
	s.rage(env, 2*time.Minute, func() {})
	s.settle(env)
}

// brew issues the tokens by an instance that is gone afterwards.
func brew(t *testing.T, env boot.Env, sockets, each int) (*storm, boot.Env) {
	t.Helper()
	env["SESSION_MAX_FRAMES_PER_SECOND"], env["SESSION_PING_INTERVAL"] = "10000", "1s"
	p := newPlace(t, env)
	s := newStorm(t, p, sockets, each)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	return s, p.env
}
