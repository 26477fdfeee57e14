package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/fault"
)

const (
	// Topic announces that the limits in the store have changed.
	Topic = "limits"

	// SettingName is the limits' name in the mirror.
	SettingName = "limits"

	rereadEvery = 5 * time.Second

	// patience is what Run has for a mirror that hangs: the next reload, which
	// may bring other limits, waits for it.
	patience = 500 * time.Millisecond
)

// Settings holds the limits in force and keeps them in step with the store. A
// bad value there changes nothing: the last good one stays, at start the
// mirror's. A value that the store lost is restored from the mirror.
//
// It may be used from any goroutine.
type Settings struct {
	store   LimitsStore
	mirror  Mirror
	log     *slog.Logger
	refused prometheus.Counter
	current atomic.Pointer[Limits]
	read    atomic.Bool // the store was reached, and current is what follows from it
	wake    chan struct{}

	mu       sync.Mutex // one reload at a time: an older read never replaces a newer one
	settled  bool       // current comes from the store or the mirror
	bad      string     // the refused value that was reported last
	mirrored Limits     // what the mirror is known to hold; zero: not known
}

// NewSettings returns settings that hold the defaults until the first Reload.
func NewSettings(store LimitsStore, mirror Mirror, log *slog.Logger, registry prometheus.Registerer) *Settings {
	s := &Settings{
		store:  store,
		mirror: mirror,
		log:    log,
		refused: promauto.With(registry).NewCounter(prometheus.CounterOpts{
			Name: "telapi_ratelimit_limits_refused_total",
			Help: "Bad values of the limits found in the key-value store.",
		}),
		wake: make(chan struct{}, 1),
	}
	limits := DefaultLimits()
	s.current.Store(&limits)
	return s
}

// Current returns the limits in force, which must not be changed. The pointer
// changes when, and only when, the limits do.
func (s *Settings) Current() *Limits { return s.current.Load() }

// InForce implements Source. An instance that has just started reads the limits
// before it holds anybody to them, or whoever is over the defaults would be
// refused.
func (s *Settings) InForce(ctx context.Context) (*Limits, error) {
	if !s.read.Load() {
		if err := s.Reload(ctx); !s.read.Load() {
			return nil, err
		}
	}
	return s.Current(), nil
}

// Up, Down and Message follow the announcements of this instance. They do not
// block: Run does the work.
func (s *Settings) Up() { s.poke() }

// Down changes nothing: Run goes on to read.
func (s *Settings) Down(error) {}

// Message has the limits read again if they are its topic.
func (s *Settings) Message(topic string) {
	if topic == Topic {
		s.poke()
	}
}

func (s *Settings) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // a reload that has yet to start is due already
	}
}

// Run reloads until ctx ends: at once, on announcements, and every few seconds
// in case one was missed. It is silent about a store that is away, which reports
// that itself.
func (s *Settings) Run(ctx context.Context) {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	failing := false
	for {
		bounded, cancel := context.WithTimeout(ctx, patience)
		err := s.Reload(bounded)
		cancel()
		if err != nil && !failing && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
			s.log.Warn("limits could not be reloaded; the last good ones stay in force", "error", err)
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

// Reload reads the limits once. A bad value is no error of Reload's: it is
// reported once and passed over.
func (s *Settings) Reload(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, there, err := s.store.Limits(ctx)
	if err != nil {
		return fmt.Errorf("read limits: %w", err)
	}
	defer s.read.Store(true)
	limits, bad := ParseLimits(value)
	if there && bad == nil {
		s.bad = ""
		s.adopt(limits)
		return s.copyToMirror(ctx, limits)
	}
	if there {
		s.complain(value, bad)
		if s.settled {
			return nil
		}
	}
	if limits, err = s.lastGood(ctx); err != nil {
		return err
	}
	if !there && s.mirrored == limits {
		if _, err := s.store.SaveLimits(ctx, nil, limits.JSON()); err != nil {
			return fmt.Errorf("restore limits: %w", err)
		}
		s.log.Warn("the key-value store had lost the limits; restored from the database")
	}
	s.adopt(limits)
	return nil
}

func (s *Settings) complain(value []byte, bad error) {
	if s.bad == string(value) {
		return
	}
	s.bad = string(value)
	s.refused.Inc()
	s.log.Error("bad limits in the key-value store; the last good ones stay in force", "error", bad, "issues", fault.From(bad).Details)
}

func (s *Settings) adopt(limits Limits) {
	s.settled = true
	if *s.current.Load() != limits {
		s.current.Store(&limits)
		s.log.Info("limits in force", "limits", string(limits.JSON()))
	}
}

// lastGood is what holds where the store has no good value: the mirror's, or
// else what is in force.
func (s *Settings) lastGood(ctx context.Context) (Limits, error) {
	value, there, err := s.mirror.Setting(ctx, SettingName)
	if err != nil {
		return Limits{}, fmt.Errorf("read mirrored limits: %w", err)
	}
	if there {
		limits, err := ParseLimits(value)
		if err == nil {
			s.mirrored = limits
			return limits, nil
		}
		s.log.Error("bad limits in the database; passed over", "error", err)
	}
	return *s.Current(), nil
}

func (s *Settings) copyToMirror(ctx context.Context, limits Limits) error {
	if s.mirrored == (Limits{}) { // perhaps they are there already
		if _, err := s.lastGood(ctx); err != nil {
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

// saveAttempts bounds how often a change is made anew on top of somebody's.
const saveAttempts = 10

// Change puts changed limits in force on every instance. What another
// administrator saves meanwhile is not lost: the change is made on top of it. An
// error says what was and what was not done.
func (s *Settings) Change(ctx context.Context, change func(Limits) (Limits, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range saveAttempts {
		old, _, err := s.store.Limits(ctx)
		if err != nil {
			return fmt.Errorf("read limits: %w", err)
		}
		limits, err := ParseLimits(old)
		if err != nil {
			limits, err = s.lastGood(ctx)
		}
		if err == nil {
			limits, err = change(limits)
		}
		if err == nil {
			err = limits.Validate()
		}
		if err != nil {
			return err
		}
		saved, err := s.store.SaveLimits(ctx, old, limits.JSON())
		if err != nil {
			return fmt.Errorf("save limits: %w", err)
		}
		if !saved {
			continue
		}
		s.adopt(limits)
		if err := s.copyToMirror(ctx, limits); err != nil {
			return fault.New(fault.ServiceUnavailable, "The limits are saved and in force, but the database has no copy of "+
				"them yet. A running server makes it as soon as the database is back; until then a lost "+
				"key-value store loses them too.").WithCause(err)
		}
		return nil
	}
	return fault.New(fault.ServiceUnavailable, "Somebody else keeps saving limits at the same time. Nothing was changed; try again.")
}
