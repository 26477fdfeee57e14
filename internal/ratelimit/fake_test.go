package ratelimit

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fakeCounter is a Counter in memory, so that time can be faked. It passes the tests
// of package conformance.
type fakeCounter struct {
	mu        sync.Mutex
	delay     time.Duration // of a round trip
	err       error         // of every Grant, if set
	requested []int64       // sizes of all grants
	byKey     map[string]*fakeWindow
}

type fakeWindow struct {
	used int64
	ends time.Time
}

func newFakeCounter() *fakeCounter {
	return &fakeCounter{byKey: map[string]*fakeWindow{}}
}

func (c *fakeCounter) Grant(_ context.Context, key string, want, limit int64, length time.Duration) (Grant, error) {
	half := c.delay / 2
	time.Sleep(half) // request
	defer time.Sleep(half)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requested = append(c.requested, want)
	if c.err != nil {
		return Grant{}, c.err
	}
	now := time.Now()
	w := c.byKey[key]
	if w == nil || !now.Before(w.ends) {
		w = &fakeWindow{ends: now.Add(length)}
		c.byKey[key] = w
	}
	if left := w.ends.Sub(now); left > length {
		w.ends = now.Add(length)
	}
	grant := max(0, min(want, limit-w.used))
	w.used += grant
	return Grant{grant, max(0, limit-w.used), w.ends.Sub(now)}, nil
}

func (c *fakeCounter) roundTrips() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requested)
}

// limitsOf returns limits that allow n requests of tier API per window.
func limitsOf(n int64, window time.Duration) *Limits {
	l := DefaultLimits()
	l.Tiers.API = Limit{n, window.Milliseconds()}
	return &l
}

var clientA = netip.MustParseAddr("203.0.113.7")

// fixture is a limiter with a fake counter and limits that tests can change.
type fixture struct {
	*Limiter
	t       *testing.T
	counter *fakeCounter
	current atomic.Pointer[Limits]
	metrics *prometheus.Registry
}

func newFixture(t *testing.T, limits *Limits) *fixture {
	f := &fixture{t: t, counter: newFakeCounter(), metrics: prometheus.NewRegistry()}
	f.current.Store(limits)
	f.Limiter = NewLimiter(f.counter, f.Limits, f.metrics)
	return f
}

func (f *fixture) Limits(context.Context) (*Limits, error) { return f.current.Load(), nil }

func (f *fixture) allow(client netip.Addr) Decision {
	f.t.Helper()
	d, err := f.Allow(context.Background(), API, client)
	if err != nil {
		f.t.Fatalf("Allow: %v", err)
	}
	return d
}

// allowUntilRejected sends requests until one is rejected and returns the number of
// allowed ones.
func (f *fixture) allowUntilRejected(client netip.Addr) (n int64) {
	f.t.Helper()
	for f.allow(client).Allowed {
		n++
	}
	return n
}

// The fakes, for conformance tests.
func NewFakeCounter() Counter         { return newFakeCounter() }
func NewFakeLimitsStore() LimitsStore { return &fakeStore{} }
func NewFakeMirror() Mirror           { return &fakeMirror{} }
