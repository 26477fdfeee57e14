package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/redact"
)

const (
	actionQueueBytes = 8 << 20
	// minActionBytes is the least that an action counts in the queue. It bounds
	// the queue to 4,096 actions.
	minActionBytes  = 2 << 10
	actionBatchSize = 200
)

// Limits of the stored actions.
const (
	MaxActionBytes  = 16 << 10 // of one action
	MaxActions      = 10_000   // of one session
	MaxActionsBytes = 16 << 20 // of one session
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
// and counts actions that exceed its capacity or the limits of stored actions, so
// that browsers never wait for the database.
type ActionQueue struct {
	queue    *background.Queue[Action]
	keepText bool
	log      *slog.Logger
	dropped  *prometheus.CounterVec
}

// NewActionQueue returns an empty queue. keepText is ENABLE_PII_LOGGING.
func NewActionQueue(store Store, keepText bool, log *slog.Logger, reg prometheus.Registerer) *ActionQueue {
	q := &ActionQueue{keepText: keepText, log: log, dropped: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_browser_actions_dropped_total", Help: "Browser actions that were not stored, by reason: too_large, session_limit, full, malformed, rejected or shutdown."},
		[]string{"reason"})}
	weigh := func(a Action) int { return max(len(a.JSON), minActionBytes) }
	write := func(ctx context.Context, actions []Action) error {
		excess, err := store.AddBrowserActions(ctx, actions)
		q.dropped.WithLabelValues("session_limit").Add(float64(excess))
		return err
	}
	q.queue = background.NewQueue(actionQueueBytes, weigh, actionBatchSize, write, func(a Action, err error) error {
		q.dropped.WithLabelValues("rejected").Inc()
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
		if stored, err = RedactText(browserAction); err != nil {
			q.dropped.WithLabelValues("malformed").Inc()
			return
		}
	}
	if len(stored) > MaxActionBytes {
		q.dropped.WithLabelValues("too_large").Inc()
		return
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

// keptMembers are the top-level members that describe an action.
var keptMembers = map[string]bool{"type": true, "action": true, "id": true, "timestamp": true}

// maxIdentifier is the maximum number of characters of a kept value. A longer
// text, or one with blanks, may be a sentence.
const maxIdentifier = 64

func isIdentifier(text string) bool {
	return text != "" && utf8.RuneCountInString(text) <= maxIdentifier && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
}

// RedactText replaces every string and number in a JSON value by the redaction
// mark, at any depth, except identifiers in kept members of the top level.
func RedactText(value []byte) ([]byte, error) {
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	enc := jsontext.NewEncoder(&out, jsontext.PreserveRawStrings(true))
	member := "" // name of the current top-level member
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && bytes.Count(out.Bytes(), []byte("\n")) == 1 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil // exactly one value
		}
		if err != nil {
			return nil, err
		}
		depth := dec.StackDepth()
		container, read := dec.StackIndex(depth) // an object's names and values count as one each
		kind := token.Kind()
		isName := kind == '"' && container == '{' && read%2 == 1
		switch {
		case isName && depth == 1:
			member = token.String()
		case isName || kind != '"' && kind != '0': // names, true, false, null and brackets stay
		case depth == 1 && container == '{' && keptMembers[member] && isIdentifier(token.String()): // stays, too
		default:
			token = jsontext.String(redact.Placeholder)
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
}
