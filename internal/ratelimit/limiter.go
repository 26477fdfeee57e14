package ratelimit

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	// maxBuckets bounds the memory that a flood from many addresses can take.
	// A forgotten bucket costs one round trip and at most its lease.
	maxBuckets = 1 << 16

	day = 24 * time.Hour
	// quotaKept outlives the day it counts, so that instances whose clocks
	// differ never lose a count at midnight.
	quotaKept = day + time.Hour
)

// Limiter decides from permits that it leases from the shared count, so that a
// busy client costs no round trip per request and one that is over its limit
// costs none at all until its window ends.
//
// It may be used from any goroutine. Callers that need a lease of the same
// bucket share one round trip; one that gives up fails nobody else. With the
// store away, leases at hand are used up and then its error is returned: the
// limiter fails closed.
type Limiter struct {
	counter Counter
	limits  Source
	decided *prometheus.CounterVec
	leases  prometheus.Counter

	mu      sync.Mutex
	buckets *simplelru.LRU[bucketKey, *bucket]
}

// bucketKey is a tier and an address, or a team and a day.
type bucketKey struct {
	tier   Tier
	client netip.Addr
	team   string
	day    int64
}

// Source knows the limits in force; Settings is the one of a server. A new
// pointer means new limits, which void the leases made under the last ones.
type Source interface {
	InForce(ctx context.Context) (*Limits, error)
}

// NewLimiter returns a limiter that holds no leases yet.
func NewLimiter(counter Counter, limits Source, registry prometheus.Registerer) *Limiter {
	buckets, err := simplelru.NewLRU[bucketKey, *bucket](maxBuckets, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	metrics := promauto.With(registry)
	l := &Limiter{
		counter: counter,
		limits:  limits,
		buckets: buckets,
		decided: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_ratelimit_decisions_total",
			Help: "Requests counted against a limit, by tier and decision.",
		}, []string{"tier", "decision"}),
		leases: metrics.NewCounter(prometheus.CounterOpts{
			Name: "telapi_ratelimit_leases_total",
			Help: "Round trips to the key-value store for permits.",
		}),
	}
	for _, policy := range append([]Tier{teamPolicy}, Tiers...) {
		for _, decision := range []string{"allowed", "refused", "failed"} {
			l.decided.WithLabelValues(string(policy), decision) // there from the start, so that rates can be told
		}
	}
	return l
}

// Allow counts one request of a client address against a tier. Addresses of
// one IPv6 /64 are one client: whoever has one of them has them all.
func (l *Limiter) Allow(ctx context.Context, tier Tier, client netip.Addr) (Decision, error) {
	limits, err := l.limits.InForce(ctx)
	if err != nil {
		return Decision{}, fmt.Errorf("limit requests: %w", err)
	}
	limit := limits.Tier(tier)
	if limit == nil {
		return Decision{}, fmt.Errorf("limit requests: %q is no tier", tier)
	}
	client = client.Unmap().WithZone("")
	if client.Is6() {
		network, err := client.Prefix(64)
		if err != nil {
			return Decision{}, fmt.Errorf("limit requests: %w", err)
		}
		client = network.Addr()
	}
	d := Decision{Policy: string(tier), Limit: limit.Max, Window: limit.Window()}
	err = l.decide(ctx, &d, bucketKey{tier: tier, client: client}, rule{limits, d.Limit, d.Window})
	return d, err
}

// AllowTeam counts one request of a team against its quota for the UTC day.
func (l *Limiter) AllowTeam(ctx context.Context, teamID string, quota int64) (Decision, error) {
	now := time.Now()
	today := now.Unix() / int64(day/time.Second)
	d := Decision{Policy: teamPolicy, Limit: quota, Window: day}
	err := l.decide(ctx, &d, bucketKey{team: teamID, day: today}, rule{nil, quota, quotaKept})
	d.Reset = time.Unix(0, 0).Add(time.Duration(today+1) * day).Sub(now)
	return d, err
}

// decide completes d and counts it. The rule is laid on the bucket once: a
// caller that waited goes by the rule in force then, or callers with different
// rules could disown each other's leases for ever.
func (l *Limiter) decide(ctx context.Context, d *Decision, key bucketKey, r rule) error {
	b := l.bucket(key)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.follow(r)
	for {
		now := time.Now()
		b.expire(now)
		switch {
		case b.permits > 0:
			b.permits--
			d.Allowed = true
			l.decided.WithLabelValues(d.Policy, "allowed").Inc()
		case b.usedUp(now):
			l.decided.WithLabelValues(d.Policy, "refused").Inc()
		default:
			if err := l.await(ctx, b, key, now); err != nil {
				l.decided.WithLabelValues(d.Policy, "failed").Inc()
				return err
			}
			continue
		}
		d.Remaining, d.Reset = b.remaining+b.permits, b.ends.Sub(now)
		return nil
	}
}

// await waits for the bucket's lease, and sends it if none is under way. The
// caller holds b.mu, which is released while waiting.
func (l *Limiter) await(ctx context.Context, b *bucket, key bucketKey, now time.Time) error {
	b.waiting++
	if b.lease == nil {
		b.lease = l.launch(ctx, b, key, now)
	}
	lease := b.lease
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.waiting-- }()
	select {
	case <-lease.done:
		return lease.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Limiter) bucket(key bucketKey) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets.Get(key)
	if !ok {
		b = &bucket{}
		l.buckets.Add(key, b)
	}
	return b
}

// launch asks the store for permits, detached from the caller, who may give up
// while others wait. The caller holds b.mu.
func (l *Limiter) launch(ctx context.Context, b *bucket, key bucketKey, now time.Time) *lease {
	ctx = context.WithoutCancel(ctx)
	r, want := b.rule, b.want()
	asked := &lease{done: make(chan struct{})}
	go func() {
		defer close(asked.done)
		l.leases.Inc()
		grant, err := l.counter.Lease(ctx, key.String(), want, r.max, r.window)
		if err != nil {
			asked.err = fmt.Errorf("lease permits: %w", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.lease != asked {
			return
		}
		b.lease = nil
		if err == nil {
			b.credit(grant, now)
		}
	}()
	return asked
}

// String names the bucket in the store.
func (k bucketKey) String() string {
	switch {
	case k.tier == "":
		return "team:" + k.team + ":" + time.Unix(k.day*int64(day/time.Second), 0).UTC().Format(time.DateOnly)
	case k.client.Is6():
		return "ip:" + string(k.tier) + ":" + k.client.String() + "/64"
	default:
		return "ip:" + string(k.tier) + ":" + k.client.String()
	}
}
