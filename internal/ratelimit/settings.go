package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/audit"
	"telapi/internal/fault"
)

const (
	// Topic announces that the limits in the store have changed.
	Topic = "limits"

	// SettingName is the name of the limits in the Mirror.
	SettingName = "limits"

	reloadInterval = 5 * time.Second

	// reloadTimeout limits how long a hanging database delays the next reload.
	reloadTimeout = 500 * time.Millisecond

	// saveAttempts limits how often Change retries after a concurrent change.
	saveAttempts = 10
)

// Settings holds the current limits and keeps them in sync with the store. If the
// value in the store is invalid, it keeps the current limits, or uses those of the
// Mirror if it has just started. If the store has lost the limits, Settings restores
// them from the Mirror.
//
// It is safe for concurrent use.
type Settings struct {
	store    LimitsStore
	mirror   Mirror
	log      *slog.Logger
	rejected prometheus.Counter
	current  atomic.Pointer[Limits]
	loaded   atomic.Bool   // the store was reached at least once
	wake     chan struct{} // requests a reload

	mu       sync.Mutex // one reload at a time, so that an older value never replaces a newer one
	adopted  bool       // current was set by adopt and is not just the initial default
	invalid  string     // the invalid value that was logged last
	mirrored Limits     // the limits in the Mirror; zero if unknown
}

// NewSettings returns settings with the default limits.
func NewSettings(store LimitsStore, mirror Mirror, log *slog.Logger, registry prometheus.Registerer) *Settings {
	s := &Settings{store: store, mirror: mirror, log: log, wake: make(chan struct{}, 1),
		rejected: promauto.With(registry).NewCounter(prometheus.CounterOpts{
			Name: "telapi_ratelimit_limits_rejected_total",
			Help: "Invalid limits found in the key-value store.",
		})}
	s.current.Store(new(DefaultLimits()))
	return s
}

// Current returns the current limits, or the defaults if none were loaded yet. The
// caller must not change them. The pointer changes only if the limits do.
func (s *Settings) Current() *Limits { return s.current.Load() }

// Limits returns the current limits. It is a Source. If no limits were loaded yet,
// it loads them: clients must not be rejected because of the defaults.
func (s *Settings) Limits(ctx context.Context) (*Limits, error) {
	if !s.loaded.Load() {
		if err := s.Reload(ctx); !s.loaded.Load() {
			return nil, err
		}
	}
	return s.Current(), nil
}

// Up implements kv.Listener. It requests a reload from Run, because
// announcements may have been missed.
func (s *Settings) Up() {
	select {
	case s.wake <- struct{}{}:
	default: // already requested
	}
}

// Down implements kv.Listener. It does nothing: Run continues to poll.
func (s *Settings) Down(error) {}

// Message implements kv.Listener. It requests a reload from Run if the limits
// were announced.
func (s *Settings) Message(topic string) {
	if topic == Topic {
		s.Up()
	}
}

// Run reloads the limits until ctx ends: at the start, on announcements, and every
// reloadInterval. It does not log that the store is unreachable: the store does.
func (s *Settings) Run(ctx context.Context) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for failing := false; ; {
		bounded, cancel := context.WithTimeout(ctx, reloadTimeout)
		err := s.Reload(bounded)
		cancel()
		if err != nil && !failing && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
			s.log.Warn("reloading the rate limits failed; the previous limits stay in force", "error", err)
		}
		failing = err != nil
		select {
		case <-s.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Reload reads the limits from the store. An invalid value is logged and not an
// error.
func (s *Settings) Reload(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, found, err := s.store.Limits(ctx)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	defer s.loaded.Store(true) // at the end, so that Limits does not return the defaults before
	if found {
		limits, err := ParseLimits(value)
		if err == nil {
			s.invalid = ""
			s.adopt(limits)
			return s.updateMirror(ctx, limits)
		}
		if s.invalid != string(value) { // counted and logged once
			s.invalid = string(value)
			s.rejected.Inc()
			s.log.Error("invalid rate limits in the key-value store; the previous limits stay in force",
				"error", err, "issues", fault.From(err).Details)
		}
		if s.adopted {
			return nil
		}
	}
	limits, err := s.lastValid(ctx)
	if err != nil {
		return err
	}
	if !found && s.mirrored == limits { // the Mirror has them
		if _, err := s.store.SaveLimits(ctx, nil, limits.JSON()); err != nil {
			return fmt.Errorf("restore limits: %w", err)
		}
		s.log.Warn("the key-value store had lost the rate limits; restored them from the database")
	}
	s.adopt(limits)
	return nil
}

func (s *Settings) adopt(limits Limits) {
	s.adopted = true
	if *s.current.Load() != limits {
		s.current.Store(&limits)
		s.log.Info("rate limits changed", "limits", string(limits.JSON()))
	}
}

// lastValid returns the limits of the Mirror, which it records in mirrored, or the current
// limits if it has none.
func (s *Settings) lastValid(ctx context.Context) (Limits, error) {
	value, found, err := s.mirror.Setting(ctx, SettingName)
	if err != nil {
		return Limits{}, fmt.Errorf("read mirrored limits: %w", err)
	}
	if found {
		limits, err := ParseLimits(value)
		if err == nil {
			s.mirrored = limits
			return limits, nil
		}
		s.log.Error("ignoring invalid rate limits in the database", "error", err)
	}
	return *s.Current(), nil
}

// updateMirror saves the limits in the Mirror, unless it has them.
func (s *Settings) updateMirror(ctx context.Context, limits Limits) error {
	if s.mirrored == (Limits{}) { // unknown
		if _, err := s.lastValid(ctx); err != nil {
			return err
		}
	}
	if s.mirrored == limits {
		return nil
	}
	if err := s.mirror.SaveSetting(ctx, SettingName, limits.JSON()); err != nil {
		return fmt.Errorf("mirror limits: %w", err)
	}
	s.mirrored = limits
	return nil
}

// Change changes the limits on all instances and writes an audit entry. If another
// change happens at the same time, it calls change again with the new limits. The
// error says whether the new limits apply.
func (s *Settings) Change(ctx context.Context, change func(Limits) (Limits, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range saveAttempts {
		if err := s.tryChange(ctx, change); !errors.Is(err, errConflict) {
			return err
		}
	}
	return fault.New(fault.ServiceUnavailable, "The limits were changed concurrently by someone else. Nothing was saved. Try again.")
}

// errConflict is returned by tryChange after a concurrent change.
var errConflict = errors.New("the limits have changed")

func (s *Settings) tryChange(ctx context.Context, change func(Limits) (Limits, error)) error {
	old, _, err := s.store.Limits(ctx)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	before, err := ParseLimits(old)
	if err != nil {
		before, err = s.lastValid(ctx)
	}
	if err != nil {
		return err
	}
	limits, err := change(before)
	if err == nil {
		_, err = ParseLimits(limits.JSON())
	}
	if err != nil {
		return err
	}
	return s.save(ctx, old, before, limits)
}

// save saves limits in the store and, with an audit entry, in the mirror: in both or
// in none, unless the mirror fails to commit.
func (s *Settings) save(ctx context.Context, old []byte, before, limits Limits) error {
	entry := audit.New(ctx, time.Now(), audit.UpdateLimits, Topic, "", before.Tiers, limits.Tiers) // of no team
	var saved bool
	err := s.mirror.ChangeSetting(ctx, SettingName, limits.JSON(), entry, func(ctx context.Context) (err error) {
		saved, err = s.store.SaveLimits(ctx, old, limits.JSON())
		if err == nil && !saved {
			err = errConflict
		}
		return err
	})
	if saved {
		s.adopt(limits)
	}
	switch {
	case err == nil:
		s.mirrored = limits
		return nil
	case saved:
		return fault.New(fault.ServiceUnavailable, "The limits are in force on all instances, but the database was unavailable: the audit log has no entry, and there is no copy yet. "+
			"Don't repeat the request. A running server writes the copy when the database is back.").WithCause(err)
	default:
		return fmt.Errorf("save limits: %w", err)
	}
}
