package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

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
			return l.keep(ctx, name, holder), waited, nil
		}
		waited = true
		if sleep(ctx, leasePoll/2+rand.N(leasePoll)); ctx.Err() != nil { //nolint:gosec // jitter, not a secret
			return nil, waited, fmt.Errorf("wait for a lease: %w", ctx.Err())
		}
	}
}

func (l Leases) take(ctx context.Context, name, holder string) (taken bool, err error) {
	err = l.store.do(ctx, "take a lease", func(ctx context.Context, c rueidis.Client) error {
		err := c.Do(ctx, c.B().Set().Key(leasePrefix+name).Value(holder).Nx().Px(leaseTime).Build()).Error()
		taken = err == nil
		return present(err)
	})
	return taken, err
}

// keep renews a lease until it is released or lost.
func (l Leases) keep(ctx context.Context, name, holder string) (release func()) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		for held := true; held; {
			if sleep(ctx, leaseTime/3); ctx.Err() != nil {
				return
			}
			// What cannot be renewed now may be the next time.
			held, _ = l.hold(ctx, name, holder, leaseTime)
		}
	}()
	return func() {
		stop()
		_, _ = l.hold(context.WithoutCancel(ctx), name, holder, 0) // else it runs out
	}
}

func (l Leases) hold(ctx context.Context, name, holder string, d time.Duration) (held bool, err error) {
	held = true
	err = l.store.do(ctx, "renew a lease", func(ctx context.Context, c rueidis.Client) (err error) {
		held, err = l.store.scripts.hold.Exec(ctx, c, []string{leasePrefix + name}, []string{holder, strconv.FormatInt(d.Milliseconds(), 10)}).AsBool()
		return err
	})
	return held || err != nil, err
}
