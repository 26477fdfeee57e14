package ratelimit

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// counts is a Counter in memory, so that time can be faked. It passes the tests
// of package conformance.
type counts struct {
	mu        sync.Mutex
	delay     time.Duration
	err       error
	requested []int64 // sizes of all leases
	byKey     map[string]*window
}

type window struct {
	used int64
	ends time.Time
}

func newCounts() *counts {
	return &counts{byKey: map[string]*window{}}
}

func (c *counts) Lease(_ context.Context, key string, want, limit int64, length time.Duration) (Grant, error) {
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
		w = &window{ends: now.Add(length)}
		c.byKey[key] = w
	}
	if left := w.ends.Sub(now); left > length {
		w.ends = now.Add(length)
	}
	grant := max(0, min(want, limit-w.used))
	w.used += grant
	return Grant{grant, max(0, limit-w.used), w.ends.Sub(now)}, nil
}

func (c *counts) round() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.requested)
}

func limitsOf(n int64, window time.Duration) *Limits {
	l := DefaultLimits()
	l.Tiers.API = Limit{n, window.Milliseconds()}
	return &l
}

var alice = netip.MustParseAddr("203.0.113.7")

type fixture struct {
	*Limiter
	t       *testing.T
	counts  *counts
	current atomic.Pointer[Limits]
	metrics *prometheus.Registry
}

func newFixture(t *testing.T, limits *Limits) *fixture {
	f := &fixture{t: t, counts: newCounts(), metrics: prometheus.NewRegistry()}
	f.current.Store(limits)
	f.Limiter = NewLimiter(f.counts, f.Limits, f.metrics)
	return f
}

func (f *fixture) Limits(context.Context) (*Limits, error) { return f.current.Load(), nil }

func (f *fixture) allow(client netip.Addr) Decision {
	f.t.Helper()
	d, err := f.Allow(context.Background(), API, client)
	if err != nil {
		f.t.Fatalf("allow: %v", err)
	}
	return d
}

func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	_ = c.Write(&m)
	return m.GetCounter().GetValue()
}

// spend sends requests until one is refused and returns how many were allowed.
func (f *fixture) spend(client netip.Addr) (n int64) {
	f.t.Helper()
	for f.allow(client).Allowed {
		n++
	}
	return n
}
