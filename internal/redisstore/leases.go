package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/sleep"
	"telapi/internal/speech"
)

const (
	leaseTime = 5 * time.Second // after which a dead holder's passes to another
	leasePoll = 40 * time.Millisecond
)

// Leases let one instance at a time do something.
type Leases struct{ store *Store }

var _ speech.Leases = Leases{}

// NewLeases returns the leases of a store.
func NewLeases(s *Store) Leases { return Leases{s} }

// Acquire implements speech.Leases.
func (l Leases) Acquire(ctx context.Context, name string) (release func(), waited bool, err error) {
	holder := uuid.NewString()
	for {
		if taken, err := l.take(ctx, name, holder); err != nil {
			return nil, waited, err
		} else if taken {
			_, release := l.keep(ctx, name, holder)
			return release, waited, nil
		}
		waited = true
		if sleep.For(ctx, leasePoll/2+rand.N(leasePoll)) != nil { //nolint:gosec // jitter, not a secret
			return nil, waited, fmt.Errorf("wait for a lease: %w", ctx.Err())
		}
	}
}

func (l Leases) take(ctx context.Context, name, holder string) (taken bool, err error) {
	err = l.store.do(ctx, "take a lease", func(ctx context.Context, c rueidis.Client) error {
		err := c.Do(ctx, c.B().Set().Key(kv.LeasePrefix+name).Value(holder).Nx().Px(leaseTime).Build()).Error()
		taken = err == nil
		return present(err)
	})
	return taken, err
}

// Try implements speech.Leases.
func (l Leases) Try(ctx context.Context, name string) (turn context.Context, release func(), held bool, err error) {
	holder := uuid.NewString()
	if held, err = l.take(ctx, name, holder); err != nil || !held {
		return nil, nil, false, err
	}
	turn, release = l.keep(ctx, name, holder)
	return turn, release, true, nil
}

// keep renews a lease until it is released or lost. The turn ends with ctx, and
// as soon as the lease may have passed to another.
func (l Leases) keep(ctx context.Context, name, holder string) (turn context.Context, release func()) {
	turn, over := context.WithCancel(ctx)
	expiry := time.AfterFunc(leaseTime-leaseTime/10, over)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() {
		defer over()
		for held := true; held; {
			if sleep.For(renewing, leaseTime/3) != nil {
				return
			}
			asked := time.Now()
			var err error
			// What cannot be renewed now may be the next time.
			if held, err = l.hold(renewing, name, holder, leaseTime); held && err == nil {
				expiry.Reset(leaseTime - leaseTime/10 - time.Since(asked))
			}
		}
	})
	return turn, func() {
		stop()
		over()
		renewal.Wait()
		_, _ = l.hold(context.WithoutCancel(ctx), name, holder, 0) // else it runs out
	}
}

func (l Leases) hold(ctx context.Context, name, holder string, d time.Duration) (held bool, err error) {
	held = true
	err = l.store.do(ctx, "renew a lease", func(ctx context.Context, c rueidis.Client) (err error) {
		held, err = l.store.scripts.hold.Exec(ctx, c, []string{kv.LeasePrefix + name}, []string{holder, strconv.FormatInt(d.Milliseconds(), 10)}).AsBool()
		return err
	})
	return held || err != nil, err
}
