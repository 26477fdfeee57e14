package ratelimit

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/cache"
)

const (
	// maxBuckets limits the memory that requests from many addresses can use. The
	// permits of an evicted bucket are lost, and its next request needs a round
	// trip.
	maxBuckets        = 1 << 16
	noTeam, teamShare = "", 100 // percent: the cache of buckets is not divided among teams

	day = 24 * time.Hour
	// quotaWindow is longer than a day, so that the count of a day exists until
	// midnight on all instances, even if their clocks differ.
	quotaWindow = day + time.Hour
)

// Limiter allows or rejects requests. It requests grants of permits from the shared counter in
// batches, so that most requests need no round trip. A client over its limit causes
// no round trips until its window ends.
//
// It is safe for concurrent use. Requests that wait for the same bucket share a
// grant, which continues if one of them is cancelled. If the store is unreachable,
// the limiter uses its remaining permits and then returns the store's error: it
// fails closed.
type Limiter struct {
	counter   Counter
	limits    Source
	requests  *background.Group
	decisions *prometheus.CounterVec
	grants    prometheus.Counter

	mu      sync.Mutex
	buckets *cache.LRU[*bucket] // by name in the store
}

// Source returns the current limits, as Settings.Limits does. A new pointer
// means new limits and invalidates the grants of the previous ones.
type Source func(ctx context.Context) (*Limits, error)

// NewLimiter returns a limiter without grants.
func NewLimiter(counter Counter, limits Source, registry prometheus.Registerer) *Limiter {
	metrics := promauto.With(registry)
	l := &Limiter{
		counter:  counter,
		limits:   limits,
		requests: background.NewGroup(),
		buckets:  cache.NewLRU[*bucket](maxBuckets, teamShare),
		decisions: metrics.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_ratelimit_decisions_total",
			Help: "Rate limit decisions, by tier and decision (allowed, rejected or failed).",
		}, []string{"tier", "decision"}),
		grants: metrics.NewCounter(prometheus.CounterOpts{
			Name: "telapi_ratelimit_grants_total",
			Help: "Grants of permits requested from the key-value store.",
		}),
	}
	for _, policy := range append([]Tier{teamPolicy, sessionPolicy}, Tiers...) {
		for _, decision := range []string{"allowed", "rejected", "failed"} {
			l.decisions.WithLabelValues(string(policy), decision) // start at 0, so that rates include the first request
		}
	}
	return l
}

// Close cancels grants in progress and waits for them.
func (l *Limiter) Close() { l.requests.Close() }

// Client returns the addresses that count as one client: a client owns all addresses of
// its IPv6 /64 network.
func Client(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, _ := address.Prefix(bits) // the zero value if the address is not valid
	return network
}

// Allow counts a request of a client address against a tier.
func (l *Limiter) Allow(ctx context.Context, tier Tier, client netip.Addr) (Decision, error) {
	limits, err := l.limits(ctx)
	if err != nil {
		return Decision{}, fmt.Errorf("limit requests: %w", err)
	}
	limit := limits.Tier(tier)
	if limit == nil {
		return Decision{}, fmt.Errorf("limit requests: unknown tier %q", tier)
	}
	d := Decision{Policy: string(tier), Limit: limit.Max, Window: limit.Window()}
	err = l.decide(ctx, &d, clientName(tier, client), rule{version: limits, max: d.Limit, window: d.Window})
	return d, err
}

// clientName returns the name of a client's bucket in the store.
func clientName(tier Tier, client netip.Addr) string {
	network := Client(client)
	name := network.Addr().String()
	if network.Addr().Is6() {
		name = network.String()
	}
	return "ip:" + string(tier) + ":" + name
}

// AllowTeam counts a request of a team against its quota for the UTC day.
func (l *Limiter) AllowTeam(ctx context.Context, teamID string, quota int64) (Decision, error) {
	now := time.Now()
	d := Decision{Policy: teamPolicy, Limit: quota, Window: day}
	err := l.decide(ctx, &d, quotaName(teamID, now), rule{max: quota, window: quotaWindow})
	d.Reset = now.Truncate(day).Add(day).Sub(now)
	return d, err
}

func quotaName(teamID string, at time.Time) string {
	return "team:" + teamID + ":" + at.UTC().Format(time.DateOnly)
}

// Granted returns how many permits of each bucket were granted in its window. The
// names are those of Counter.Grant.
type Granted interface {
	Granted(ctx context.Context, names []string) ([]int64, error)
}

// UsedToday returns the requests of teams that count against their quotas of this UTC
// day. It includes permits that instances have and did not use yet.
func UsedToday(ctx context.Context, counts Granted, teamIDs ...string) ([]int64, error) {
	names, now := make([]string, len(teamIDs)), time.Now()
	for i, id := range teamIDs {
		names[i] = quotaName(id, now)
	}
	used, err := counts.Granted(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read quota usage: %w", err)
	}
	return used, nil
}

// AllowHandshake counts a WebSocket handshake of a session.
func (l *Limiter) AllowHandshake(ctx context.Context, sessionID string, perMinute int64) (Decision, error) {
	d, name := Decision{Policy: sessionPolicy, Limit: perMinute, Window: time.Minute}, handshakesName(sessionID)
	err := l.decide(ctx, &d, name, rule{max: perMinute, window: time.Minute})
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets.Get(name); ok && b.isUnused() { // it would only use memory while the session is open
		l.buckets.Remove(name)
	}
	return d, err
}

func handshakesName(sessionID string) string { return "session:" + sessionID }

// HandshakeRejection returns true if this instance knows that AllowHandshake would
// reject the next handshake. It counts nothing.
func (l *Limiter) HandshakeRejection(sessionID string, perMinute int64) (d Decision, rejected bool) {
	l.mu.Lock()
	b, ok := l.buckets.Get(handshakesName(sessionID))
	l.mu.Unlock()
	if !ok {
		return d, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	d = Decision{Policy: sessionPolicy, Limit: perMinute, Window: time.Minute, Reset: b.ends.Sub(now)}
	return d, now.Before(b.ends) && b.permits == 0 && b.remaining == 0
}

// decide sets the fields of d and counts the decision.
func (l *Limiter) decide(ctx context.Context, d *Decision, name string, r rule) error {
	b := l.bucket(name)
	defer b.users.Add(-1)
	err := l.takeOrWait(ctx, b, d, name, r)
	decision := "rejected"
	switch {
	case err != nil:
		decision = "failed"
	case d.Allowed:
		decision = "allowed"
	}
	l.decisions.WithLabelValues(d.Policy, decision).Inc()
	return err
}

// takeOrWait sets the fields of d, after a wait if the bucket needs a grant. It applies the rule
// only once, before the first wait. If callers with different rules applied theirs after every wait,
// they could invalidate each other's grants forever.
func (l *Limiter) takeOrWait(ctx context.Context, b *bucket, d *Decision, name string, r rule) (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apply(r)
	for now := time.Now(); err == nil && !b.take(d, now); now = time.Now() {
		b.waiting++
		if b.request == nil {
			b.request = l.requestGrant(ctx, b, name, now)
		}
		pending := b.request
		b.mu.Unlock()
		select {
		case <-pending.done:
			err = pending.err
		case <-ctx.Done():
			err = ctx.Err()
		}
		b.mu.Lock()
		b.waiting--
	}
	return err
}

// bucket returns the bucket with a name. The caller decrements its users.
func (l *Limiter) bucket(name string) *bucket {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets.Get(name)
	if !ok {
		b = &bucket{}
		l.buckets.Add(noTeam, name, 1, b)
	}
	b.users.Add(1)
	return b
}

// requestGrant requests permits from the store. The caller holds b.mu.
func (l *Limiter) requestGrant(ctx context.Context, b *bucket, name string, now time.Time) *grantRequest {
	r, want := b.rule, b.want()
	pending := &grantRequest{done: make(chan struct{})}
	err := l.requests.Go(ctx, func(ctx context.Context) {
		defer close(pending.done)
		l.grants.Inc()
		grant, err := l.counter.Grant(ctx, name, want, r.max, r.window)
		if err != nil {
			pending.err = fmt.Errorf("request permits: %w", err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.request != pending {
			return // the rule has changed
		}
		b.request = nil
		if err == nil {
			b.add(grant, now)
		}
	})
	if err != nil {
		pending.err = err
		close(pending.done)
	}
	return pending
}
