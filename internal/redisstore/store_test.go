package redisstore

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/config"
	"telapi/internal/redact"
	"telapi/test/poll"
	"telapi/test/servers"
)

// logBuffer is what an operator would read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *logBuffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *logBuffer) count(text string) int { return strings.Count(j.String(), text) }

func (j *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// open opens a store that is closed with the test and logged when it fails.
func open(t *testing.T, opts Options) (*Store, *logBuffer) {
	t.Helper()
	j := &logBuffer{}
	opts.Logger = j.logger()
	s := Open(opts)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("log of %s:\n%s", t.Name(), j)
		}
	})
	return s, j
}

// connect opens a store and waits for it.
func connect(t *testing.T, opts Options) (*Store, *logBuffer) {
	t.Helper()
	s, j := open(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Connect(ctx); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return s, j
}

func redisOptions(r *servers.Redis) Options {
	return Options{RedisOptions: config.RedisOptions{Addrs: []string{r.Addr()}, Password: redact.Secret(r.Password()), TLS: r.TLS()}}
}

// recorder is a Handler that records its calls.
type recorder struct {
	mu      sync.Mutex
	notices []string
}

func (e *recorder) note(s string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notices = append(e.notices, s)
}

func (e *recorder) Up()                  { e.note("up") }
func (e *recorder) Down(error)           { e.note("down") }
func (e *recorder) Message(topic string) { e.note(topic) }

func (e *recorder) recorded() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.notices, " ")
}

// subscribe subscribes an recorder until the test ends, and waits until it is up.
func subscribe(t *testing.T, s *Store) *recorder {
	t.Helper()
	e := &recorder{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Subscribe(ctx, e); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	poll.Until(t, "subscription", func() bool { return strings.HasPrefix(e.recorded(), "up") })
	return e
}

// key of a slot of its own, so that a cluster's nodes all get some.
func spread(i int) string { return "test:" + string(rune('a'+i)) }
