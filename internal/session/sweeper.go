package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/team"
)

const (
	sweepInterval = 2 * time.Second // on average
	sweepTimeout  = 30 * time.Second
	sweepPage     = 500 // sessions per query
	// settleDelay is how long the instance that ended a session has to end its
	// channel before other instances do.
	settleDelay = 15 * time.Second
	// A session is stale once it was not seen for idle/staleFraction. From then on, it is
	// checked idleChecks times per idle duration.
	staleFraction = 4
	idleChecks    = 16
)

// Sweeper ends expired and idle sessions and deletes old ones. Any number of
// instances may sweep: each session is ended by one of them.
type Sweeper struct {
	service     *Service
	idle        time.Duration
	retention   time.Duration
	log         *slog.Logger
	touched     background.LastSeen
	idleChecked time.Time     // last call of checkIdle; used by Sweep only
	wake        chan struct{} // requests that sessions are settled at once
}

// NewSweeper returns a sweeper that ends sessions that have been disconnected for
// the idle duration and deletes sessions that ended longer ago than retention. If
// retention is 0, ended sessions are kept forever.
func NewSweeper(service *Service, idle, retention time.Duration, log *slog.Logger) *Sweeper {
	return &Sweeper{service: service, idle: idle, retention: retention, log: log, wake: make(chan struct{}, 1)}
}

// Touch records that the session's browser is connected now. It does not block: the
// next sweep writes the time to the store.
func (s *Sweeper) Touch(id string) { s.touched.Record(id, s.service.Now()) }

// Up implements kv.Listener.
func (s *Sweeper) Up() {}

// Down implements kv.Listener. The next sweep settles the sessions whose
// announcement was missed.
func (s *Sweeper) Down(error) {}

// Message implements kv.Listener. A team that was disabled and an endpoint that
// was deleted have revoked their sessions in the database: Run ends the channels.
func (s *Sweeper) Message(topic string) {
	if !strings.HasPrefix(topic, team.TopicPrefix) && !strings.HasPrefix(topic, team.EndpointTopicPrefix) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default: // already requested
	}
}

// Run sweeps until ctx is done, at random intervals, so that instances do not do the
// same work at the same time. It writes pending touches before it returns.
func (s *Sweeper) Run(ctx context.Context) {
	next := time.NewTimer(sweepDelay())
	defer next.Stop()
	for ctx.Err() == nil {
		select {
		case <-next.C:
			s.logError(ctx, s.Sweep(ctx))
			next.Reset(sweepDelay())
		case <-s.wake:
			s.logError(ctx, s.settleAll(ctx))
		case <-ctx.Done():
		}
	}
	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), background.ShutdownTimeout)
	defer cancel()
	s.logError(shutdownCtx, s.touched.Flush(shutdownCtx, s.service.Store.TouchSessions))
}

func sweepDelay() time.Duration { return sweepInterval/2 + rand.N(sweepInterval) } //nolint:gosec // not a secret

// logError logs err unless a store is unavailable, which the stores log
// themselves.
func (s *Sweeper) logError(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
		s.log.ErrorContext(ctx, "session sweep failed", "error", err)
	}
}

// Sweep runs all steps once, even if some fail.
func (s *Sweeper) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	return errors.Join(
		s.touched.Flush(ctx, s.service.Store.TouchSessions),
		s.expire(ctx),
		s.settle(ctx),
		s.prune(ctx),
	)
}

func (s *Sweeper) expire(ctx context.Context) error {
	idleSince, idleErr := s.checkIdle(ctx)
	for {
		ids, err := s.service.Store.ExpireSessions(ctx, s.service.Now(), idleSince, sweepPage)
		if err == nil {
			err = s.service.endChannels(ctx, Expired, ids...)
		}
		if err != nil || len(ids) == 0 {
			return errors.Join(idleErr, err)
		}
	}
}

// checkIdle touches stale sessions that have a connected browser, ends stale
// sessions whose channel the runtime has ended, and returns the time before which
// idle sessions were last seen. Between checks it returns the zero time, before which no
// session was seen.
//
// A session is checked several times before it counts as idle. So sessions do not
// end because the key-value store was wiped and their connections are missing until
// they are renewed.
func (s *Sweeper) checkIdle(ctx context.Context) (since time.Time, err error) {
	now := s.service.Now()
	if now.Sub(s.idleChecked) < s.idle/idleChecks {
		return time.Time{}, nil
	}
	s.idleChecked = now
	for after := ""; ; {
		stale, err := s.service.Store.StaleSessions(ctx, now.Add(-s.idle/staleFraction), after, sweepPage)
		if err != nil {
			return time.Time{}, err
		}
		if len(stale) == 0 {
			return now.Add(-s.idle), nil
		}
		after = stale[len(stale)-1]
		connected, ended, err := s.service.Channels.Presence(ctx, stale)
		if err != nil {
			return time.Time{}, fmt.Errorf("query presence: %w", err)
		}
		for _, id := range ended { // the runtime ended these channels while no browser was connected
			if err := s.service.End(ctx, id); err != nil {
				return time.Time{}, err
			}
		}
		seen := map[string]time.Time{}
		for _, id := range connected {
			seen[id] = now
		}
		if err := s.service.Store.TouchSessions(ctx, seen); err != nil {
			return time.Time{}, err
		}
	}
}

// settle ends the channels of sessions that ended on an instance that could not end
// the channel itself.
func (s *Sweeper) settle(ctx context.Context) error {
	_, err := s.settlePage(ctx, s.service.Now().Add(-settleDelay))
	return err
}

// settleAll ends the channels of all ended sessions at once. The future time includes
// sessions that an instance with another clock has ended.
func (s *Sweeper) settleAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	for {
		n, err := s.settlePage(ctx, s.service.Now().Add(settleDelay))
		if err != nil || n < sweepPage {
			return err
		}
	}
}

func (s *Sweeper) settlePage(ctx context.Context, endedBefore time.Time) (int, error) {
	unsettled, err := s.service.Store.UnsettledSessions(ctx, endedBefore, sweepPage)
	for _, session := range unsettled {
		err = errors.Join(err, s.service.endChannels(ctx, session.EndedAs, session.ID))
	}
	return len(unsettled), err
}

// prune deletes old sessions except those that an idempotency key may refer to.
func (s *Sweeper) prune(ctx context.Context) error {
	var endedBefore time.Time
	if s.retention > 0 {
		endedBefore = s.service.Now().Add(-max(s.retention, keyTTL))
	}
	return s.service.Store.PruneSessions(ctx, s.service.Now().Add(-keyTTL), endedBefore, sweepPage)
}
