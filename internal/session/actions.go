package session

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
)

// What waits for the database at the most, and how much is written at once.
const (
	maxActions     = 4096
	maxActionBytes = 8 << 20
	actionBatch    = 200
	lastWrite      = 5 * time.Second // how long the rest may take when the service ends
)

// Action is something a browser reported of its page, as it is kept: a JSON
// object, blanked unless the deployment keeps personal data.
type Action struct {
	SessionID string
	MessageID string
	At        time.Time
	JSON      []byte
}

// ActionStore keeps actions. An action that is there already stays as it is.
type ActionStore interface {
	AddBrowserActions(ctx context.Context, actions []Action) error
}

// Actions writes browser actions to the database in the background. The queue
// is bounded, and what does not fit in is dropped and counted: no browser waits
// for the database.
type Actions struct {
	store    ActionStore
	keepText bool
	log      *slog.Logger
	dropped  *prometheus.CounterVec

	mu     sync.Mutex
	queue  []Action
	bytes  int
	arrive chan struct{}
}

// NewActions returns an empty queue. keepText is ENABLE_PII_LOGGING.
func NewActions(store ActionStore, keepText bool, log *slog.Logger, reg prometheus.Registerer) *Actions {
	a := &Actions{
		store: store, keepText: keepText, log: log, arrive: make(chan struct{}, 1),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_browser_actions_dropped_total", Help: "Browser actions that were not kept, by reason: full, malformed, refused or shutdown."},
			[]string{"reason"}),
	}
	reg.MustRegister(a.dropped)
	return a
}

// Keep queues an action and returns at once. The bytes are the caller's again
// when it does, and no text is in the queue that must not be in the database.
func (a *Actions) Keep(sessionID, messageID string, at time.Time, browserAction []byte) {
	kept := slices.Clone(browserAction)
	if !a.keepText {
		var err error
		if kept, err = blank(browserAction); err != nil {
			a.dropped.WithLabelValues("malformed").Inc()
			return
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) >= maxActions || a.bytes+len(kept) > maxActionBytes {
		a.dropped.WithLabelValues("full").Inc()
		return
	}
	a.queue = append(a.queue, Action{sessionID, messageID, at, kept})
	a.bytes += len(kept)
	select {
	case a.arrive <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, and what is left then, for a few seconds.
func (a *Actions) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-a.arrive:
			a.drain(ctx)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	a.drain(last)
	a.mu.Lock()
	defer a.mu.Unlock()
	if left := len(a.queue); left > 0 {
		a.dropped.WithLabelValues("shutdown").Add(float64(left))
		a.log.WarnContext(ctx, "browser actions were not written before the end", "actions", left)
	}
}

// drain writes until the queue is empty or ctx ends. A batch leaves the queue
// when it is written or refused, not before.
func (a *Actions) drain(ctx context.Context) {
	for ctx.Err() == nil {
		a.mu.Lock()
		batch := slices.Clone(a.queue[:min(len(a.queue), actionBatch)])
		a.mu.Unlock()
		if len(batch) == 0 || a.write(ctx, batch) != nil {
			return
		}
		a.mu.Lock()
		a.queue = slices.Delete(a.queue, 0, len(batch))
		for _, written := range batch {
			a.bytes -= len(written.JSON)
		}
		a.mu.Unlock()
	}
}

// write tries until the database takes the batch. Where it refuses one action,
// the others are written without it. The error is the end of ctx.
func (a *Actions) write(ctx context.Context, batch []Action) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, 5*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := a.store.AddBrowserActions(ctx, batch)
		if err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(batch) == 1:
		a.dropped.WithLabelValues("refused").Inc()
		a.log.ErrorContext(ctx, "a browser action was refused by the database", "session_id", batch[0].SessionID, "error", err)
		return nil
	}
	for i := range batch {
		if err := a.write(ctx, batch[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}
