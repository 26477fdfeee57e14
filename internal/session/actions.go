package session

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/writebehind"
)

// What waits for the database at the most, and how much is written at once. A
// small action takes as much room as one of 2 KiB, so that there are 4,096 at the
// most.
const (
	actionRoom     = 8 << 20
	minActionBytes = 2 << 10
	actionBatch    = 200
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

// ActionQueue writes browser actions to the database in the background. The queue
// is bounded, and what does not fit in is dropped and counted: no browser waits
// for the database.
type ActionQueue struct {
	queue    *writebehind.Queue[Action]
	keepText bool
	log      *slog.Logger
	dropped  *prometheus.CounterVec
}

// NewActions returns an empty queue. keepText is ENABLE_PII_LOGGING.
func NewActions(store ActionStore, keepText bool, log *slog.Logger, reg prometheus.Registerer) *ActionQueue {
	a := &ActionQueue{keepText: keepText, log: log, dropped: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_browser_actions_dropped_total", Help: "Browser actions that were not kept, by reason: full, malformed, refused or shutdown."},
		[]string{"reason"})}
	a.queue = writebehind.NewQueue(actionRoom, actionBatch, store.AddBrowserActions, a.refused)
	return a
}

// AddAction queues an action and returns at once. The bytes are the caller's again
// when it does, and no text is in the queue that must not be in the database.
func (a *ActionQueue) AddAction(sessionID, messageID string, at time.Time, browserAction []byte) {
	kept := slices.Clone(browserAction)
	if !a.keepText {
		var err error
		if kept, err = blank(browserAction); err != nil {
			a.dropped.WithLabelValues("malformed").Inc()
			return
		}
	}
	if !a.queue.Add(Action{sessionID, messageID, at, kept}, max(len(kept), minActionBytes)) {
		a.dropped.WithLabelValues("full").Inc()
	}
}

// Run writes until ctx ends, and what is left then, for a few seconds.
func (a *ActionQueue) Run(ctx context.Context) {
	if left := a.queue.Run(ctx); left > 0 {
		a.dropped.WithLabelValues("shutdown").Add(float64(left))
		a.log.WarnContext(ctx, "browser actions were not written before the end", "actions", left)
	}
}

func (a *ActionQueue) refused(bad Action, err error) error {
	a.dropped.WithLabelValues("refused").Inc()
	a.log.Error("a browser action was refused by the database", "session_id", bad.SessionID, "error", err)
	return nil
}
