package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/internal/background"
	"telapi/internal/kv"
	"telapi/internal/speech"
)

const (
	leaseTime = 5 * time.Second       // after which the lease of a crashed holder expires
	leasePoll = 40 * time.Millisecond // between two attempts to acquire a lease
)

// Leases are named locks with a time limit.
type Leases struct {
	store *Store
	time  time.Duration // leaseTime except in tests
}

var _ speech.Leases = Leases{}

// NewLeases returns the leases of a store.
func NewLeases(s *Store) Leases { return Leases{s, leaseTime} }

// Acquire implements speech.Leases.
func (l Leases) Acquire(ctx context.Context, name string) (release func(), waited bool, err error) {
	for {
		_, release, held, err := l.Try(ctx, name)
		if err != nil || held {
			return release, waited, err
		}
		waited = true
		if background.Sleep(ctx, leasePoll/2+rand.N(leasePoll)) != nil { //nolint:gosec // jitter, not a secret
			return nil, waited, fmt.Errorf("wait for a lease: %w", ctx.Err())
		}
	}
}

// Try implements speech.Leases.
func (l Leases) Try(ctx context.Context, name string) (leaseCtx context.Context, release func(), held bool, err error) {
	holder := uuid.NewString()
	held, err = query(ctx, l.store, "take a lease", func(ctx context.Context, c rueidis.Client) (bool, error) {
		err := c.Do(ctx, c.B().Set().Key(kv.LeasePrefix+name).Value(holder).Nx().Px(l.time).Build()).Error()
		return err == nil, ignoreNil(err)
	})
	if held {
		leaseCtx, release = l.renew(ctx, name, holder)
	}
	return leaseCtx, release, held, err
}

// renew renews a lease until it is released or lost, or the store closes. The
// returned context ends with ctx and as soon as another holder may have the lease.
func (l Leases) renew(ctx context.Context, name, holder string) (leaseCtx context.Context, release func()) {
	leaseCtx, lost := context.WithCancel(ctx)
	reliable := l.time - l.time/10 // how long after a renewal the holder relies on its lease
	expiry := time.AfterFunc(reliable, lost)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	run := func(closing context.Context) {
		defer close(finished)
		defer lost()
		defer context.AfterFunc(closing, stop)() // ends renewing when the store closes
		for held := true; held; {
			if background.Sleep(renewing, l.time/3) != nil {
				return
			}
			start := time.Now()
			var err error
			if held, err = l.hold(renewing, name, holder, l.time); held && err == nil {
				expiry.Reset(reliable - time.Since(start))
			}
		}
	}
	if l.store.tasks.Go(ctx, run) != nil {
		lost()
		close(finished)
	}
	return leaseCtx, func() {
		stop()
		lost()
		<-finished
		_, _ = l.hold(context.WithoutCancel(ctx), name, holder, 0) // releases it; if that fails, it expires
	}
}

// hold renews a lease for a duration, or releases it if that is 0. After an error the lease counts as
// held, so that the next renewal can succeed.
func (l Leases) hold(ctx context.Context, name, holder string, duration time.Duration) (held bool, err error) {
	held, err = query(ctx, l.store, "renew a lease", func(ctx context.Context, c rueidis.Client) (bool, error) {
		return leaseScript.Exec(ctx, c, []string{kv.LeasePrefix + name}, []string{holder, kv.Millis(duration)}).AsBool()
	})
	return held || err != nil, err
}
