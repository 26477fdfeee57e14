package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"telapi/internal/fault"
	"telapi/internal/sleep"
	"telapi/internal/writebehind"
)

const (
	sweepEvery   = 2 * time.Second // on average
	sweepTimeout = 30 * time.Second
	sweepPage    = 500
	// unsettledAfter is when an end that nobody was told of is told by whoever
	// notices: the instance that ended the session must have died or lost the
	// key-value store.
	unsettledAfter = 15 * time.Second
)

// SweeperStore is what a sweeper asks of the database, besides ending sessions.
type SweeperStore interface {
	Store
	// ExpireSessions ends sessions that are due, or redeemed and not seen since
	// a moment, limit at the most, and returns the ids of those that this call
	// ended.
	ExpireSessions(ctx context.Context, now, unseenSince time.Time, limit int) ([]string, error)
	// StaleSessions lists redeemed sessions that go on and were last seen
	// before the moment, with ids greater than after, in order of id.
	StaleSessions(ctx context.Context, unseenSince time.Time, after string, limit int) ([]string, error)
	// UnsettledSessions lists sessions that ended before the moment and whose
	// end was not settled.
	UnsettledSessions(ctx context.Context, endedBefore time.Time, limit int) ([]Session, error)
	// TouchSessions notes when browsers were seen; an older moment never
	// replaces a newer one.
	TouchSessions(ctx context.Context, seen map[string]time.Time) error
	// PruneSessions deletes receipts of idempotency keys from before a moment, and
	// settled sessions that ended before another, limit at the most, with what
	// their browsers did.
	PruneSessions(ctx context.Context, keysBefore, endedBefore time.Time, limit int) error
}

// Sweeper ends sessions whose time has come. Any number of instances may sweep:
// each session is ended by one of them.
type Sweeper struct {
	service   *Service
	store     SweeperStore
	idle      time.Duration
	retention time.Duration
	log       *slog.Logger
	seen      writebehind.LastSeen
	askedAt   time.Time // when the idle were last looked for; Sweep's alone
}

// NewSweeper returns a sweeper that ends sessions without a connection for as
// long as idle, and deletes those that ended longer ago than retention; 0 keeps
// them for ever.
func NewSweeper(service *Service, store SweeperStore, idle, retention time.Duration, log *slog.Logger) *Sweeper {
	return &Sweeper{service: service, store: store, idle: idle, retention: retention, log: log}
}

// Touch notes that a browser was connected until now. It does not block; the
// next round writes it down.
func (s *Sweeper) Touch(id string) { s.seen.Note(id, s.service.Now()) }

// Run sweeps until ctx ends, in a rhythm of its own, so that instances do not
// do the same work at the same moment. What was touched is written at the end.
func (s *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if sleep.For(ctx, sweepEvery/2+rand.N(sweepEvery)) == nil { //nolint:gosec // a rhythm is no secret
			s.report(ctx, s.Sweep(ctx))
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), writebehind.ShutdownTimeout)
	defer cancel()
	s.report(last, s.seen.Flush(last, s.store.TouchSessions))
}

// report leaves it to the stores to say that they are away.
func (s *Sweeper) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
		s.log.ErrorContext(ctx, "sessions were not swept", "error", err)
	}
}

// Sweep is one round. A step that fails does not keep the others from being
// done.
func (s *Sweeper) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	return errors.Join(
		s.seen.Flush(ctx, s.store.TouchSessions),
		s.expire(ctx),
		s.buryRest(ctx),
		s.forget(ctx),
	)
}

// forget deletes what is over its retention, but no session that an idempotency
// key may still stand for.
func (s *Sweeper) forget(ctx context.Context) error {
	var endedBefore time.Time // nothing ended before it
	if s.retention > 0 {
		endedBefore = s.service.Now().Add(-max(s.retention, keyLife))
	}
	return s.store.PruneSessions(ctx, s.service.Now().Add(-keyLife), endedBefore, sweepPage)
}

// expire ends sessions that are over their time, or idle.
func (s *Sweeper) expire(ctx context.Context) error {
	idleSince, failed := s.askIdle(ctx)
	for {
		ids, err := s.store.ExpireSessions(ctx, s.service.Now(), idleSince, sweepPage)
		if err == nil {
			err = s.service.bury(ctx, Expired, ids...)
		}
		if err != nil || len(ids) == 0 {
			return errors.Join(failed, err)
		}
	}
}

// askIdle asks the key-value store about sessions that have not been seen for a
// while, again and again, long before they are idle: whenever it knows of a
// connection their time starts anew, so that a store that was wiped, and knows of
// none until they renew themselves, ends nothing. Sessions that their runtime has
// ended, end as such. Those that were not seen since the returned moment are idle;
// it is zero where that cannot be told.
func (s *Sweeper) askIdle(ctx context.Context) (since time.Time, err error) {
	now := s.service.Now()
	if now.Sub(s.askedAt) < s.idle/16 {
		return time.Time{}, nil
	}
	s.askedAt = now
	for after := ""; ; {
		stale, err := s.store.StaleSessions(ctx, now.Add(-s.idle/4), after, sweepPage)
		if err != nil {
			return time.Time{}, err
		}
		if len(stale) == 0 {
			return now.Add(-s.idle), nil
		}
		after = stale[len(stale)-1]
		live, ended, err := s.service.Channels.Presence(ctx, stale)
		if err != nil {
			return time.Time{}, fmt.Errorf("ask which browsers are connected: %w", err)
		}
		for _, id := range ended { // by runtimes, with no browser there to hear of it
			if err := s.service.End(ctx, id); err != nil {
				return time.Time{}, err
			}
		}
		seen := map[string]time.Time{}
		for _, id := range live {
			seen[id] = now
		}
		if err := s.store.TouchSessions(ctx, seen); err != nil {
			return time.Time{}, err
		}
	}
}

// buryRest tells of ends that somebody else could not tell of.
func (s *Sweeper) buryRest(ctx context.Context) error {
	rest, err := s.store.UnsettledSessions(ctx, s.service.Now().Add(-unsettledAfter), sweepPage)
	for _, ended := range rest {
		err = errors.Join(err, s.service.bury(ctx, ended.EndedAs, ended.ID))
	}
	return err
}
