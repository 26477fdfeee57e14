package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/redact"
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
func NewActionQueue(store Store, keepText bool, log *slog.Logger, reg prometheus.Registerer) *ActionQueue {
	q := &ActionQueue{keepText: keepText, log: log, dropped: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_browser_actions_dropped_total", Help: "Browser actions that were not stored, by reason: full, malformed, refused or shutdown."},
		[]string{"reason"})}
	weigh := func(a Action) int { return max(len(a.JSON), minActionBytes) }
	q.queue = writebehind.NewQueue(actionQueueBytes, weigh, actionBatchSize, store.AddBrowserActions, func(a Action, err error) error {
		q.dropped.WithLabelValues("refused").Inc()
		q.log.Error("browser action rejected by the database", "session_id", a.SessionID, "error", err)
		return nil
	})
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
	if !q.queue.Add(Action{sessionID, messageID, at, stored}) {
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

// keptMembers are the members whose text describes an action. They hold no
// personal data.
var keptMembers = map[string]bool{"type": true, "name": true, "action": true, "id": true, "timestamp": true}

// redactText replaces every string in a JSON value by the redaction mark, at any
// depth, except strings that are the value of a kept member. Strings inside an
// array or object under a kept member are replaced.
func redactText(value []byte) ([]byte, error) {
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	enc := jsontext.NewEncoder(&out, jsontext.PreserveRawStrings(true))
	member := "" // name of the current member
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && bytes.Count(out.Bytes(), []byte("\n")) == 1 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil // exactly one value
		}
		if err != nil {
			return nil, err
		}
		container, length := dec.StackIndex(dec.StackDepth())
		isString := token.Kind() == '"'
		isName := isString && container == '{' && length%2 == 1
		if isString && !isName && !keptMembers[member] {
			token = jsontext.String(redact.Placeholder)
		}
		member = ""
		if isName {
			member = token.String()
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
}
