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

const (
	actionQueueBytes = 8 << 20
	// minActionBytes is the least that an action counts in the queue. It bounds
	// the queue to 4,096 actions.
	minActionBytes  = 2 << 10
	actionBatchSize = 200
)

// Action is a browser action as it is stored: a JSON object, redacted unless the
// deployment stores personal data.
type Action struct {
	SessionID string
	MessageID string
	At        time.Time
	JSON      []byte
}

// ActionStore stores actions. It ignores actions that it already has.
type ActionStore interface {
	AddBrowserActions(ctx context.Context, actions []Action) error
}

// ActionQueue writes browser actions to the database in the background. It drops
// and counts actions that exceed its capacity, so that browsers never wait for
// the database.
type ActionQueue struct {
	queue    *writebehind.Queue[Action]
	keepText bool
	log      *slog.Logger
	dropped  *prometheus.CounterVec
}

// NewActionQueue returns an empty queue. keepText is ENABLE_PII_LOGGING.
func NewActionQueue(store ActionStore, keepText bool, log *slog.Logger, reg prometheus.Registerer) *ActionQueue {
	q := &ActionQueue{keepText: keepText, log: log, dropped: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_browser_actions_dropped_total", Help: "Browser actions that were not stored, by reason: full, malformed, refused or shutdown."},
		[]string{"reason"})}
	q.queue = writebehind.NewQueue(actionQueueBytes, actionBatchSize, store.AddBrowserActions, q.rejected)
	return q
}

// AddAction queues a copy of an action without blocking. It redacts the action
// before queueing it.
func (q *ActionQueue) AddAction(sessionID, messageID string, at time.Time, browserAction []byte) {
	stored := slices.Clone(browserAction)
	if !q.keepText {
		var err error
		if stored, err = redactText(browserAction); err != nil {
			q.dropped.WithLabelValues("malformed").Inc()
			return
		}
	}
	if !q.queue.Add(Action{sessionID, messageID, at, stored}, max(len(stored), minActionBytes)) {
		q.dropped.WithLabelValues("full").Inc()
	}
}

// Run writes actions until ctx ends, then the rest within a few seconds.
func (q *ActionQueue) Run(ctx context.Context) {
	if lost := q.queue.Run(ctx); lost > 0 {
		q.dropped.WithLabelValues("shutdown").Add(float64(lost))
		q.log.WarnContext(ctx, "browser actions lost at shutdown", "actions", lost)
	}
}

func (q *ActionQueue) rejected(a Action, err error) error {
	q.dropped.WithLabelValues("refused").Inc()
	q.log.Error("browser action rejected by the database", "session_id", a.SessionID, "error", err)
	return nil
}
