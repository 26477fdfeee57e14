package redisstore

import (
	"context"
	"strings"
	"sync"
	"testing"

	"telapi/internal/config"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

// open opens a store. At the end of the test, it closes the store and shows the log
// if the test failed.
func open(t *testing.T, opts Options) (*Store, *testkit.Buffer) {
	t.Helper()
	logs := &testkit.Buffer{}
	opts.Logger = logs.Logger()
	s := Open(opts)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("log of %s:\n%s", t.Name(), logs)
		}
	})
	return s, logs
}

// connect opens a store and waits until it is connected.
func connect(t *testing.T, opts Options) (*Store, *testkit.Buffer) {
	t.Helper()
	s, logs := open(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	if err := s.Connect(ctx); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return s, logs
}

func redisOptions(r *testkit.Redis) Options {
	return Options{RedisOptions: config.RedisOptions{Addrs: []string{r.Addr()}, Password: redact.Secret(r.Password()), TLS: r.TLS()}}
}

// recorder is a pubsub.Subscriber that records its calls.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, s)
}

func (r *recorder) Up()                  { r.note("up") }
func (r *recorder) Down(error)           { r.note("down") }
func (r *recorder) Message(topic string) { r.note(topic) }

func (r *recorder) recorded() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.calls, " ")
}

// subscribe subscribes a recorder until the test ends. It waits until the
// subscription is up.
func subscribe(t *testing.T, s *Store) *recorder {
	t.Helper()
	rec := &recorder{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Subscribe(ctx, rec); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	testkit.Until(t, "subscription", func() bool { return strings.HasPrefix(rec.recorded(), "up") })
	return rec
}

// slotKey returns the i-th key. Each is in another slot, so that they are spread
// over the nodes of a cluster.
func slotKey(i int) string { return "test:" + string(rune('a'+i)) }
