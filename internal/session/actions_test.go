package session_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/session"
	"telapi/internal/sqlstore"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

// actionStore is a SQLite database that fails while unavailable is set. It counts
// the calls of AddBrowserActions.
type actionStore struct {
	*sqlstore.Store
	unavailable atomic.Bool
	calls       atomic.Int64
}

func (s *actionStore) AddBrowserActions(ctx context.Context, actions []session.Action) (excess int, err error) {
	s.calls.Add(1)
	if s.unavailable.Load() {
		return 0, errUnavailable
	}
	return s.Store.AddBrowserActions(ctx, actions)
}

// actionTest is a running queue of browser actions.
type actionTest struct {
	queue    *session.ActionQueue
	store    *actionStore
	dataDir  string
	registry *prometheus.Registry
	stop     func() // ends Run and waits for it
}

func startActionQueue(t *testing.T, keepText bool) *actionTest {
	t.Helper()
	a := &actionTest{dataDir: t.TempDir(), registry: prometheus.NewRegistry()}
	a.store = &actionStore{Store: sqlite.Open(t, a.dataDir)}
	a.queue = session.NewActionQueue(a.store, keepText, slog.New(slog.DiscardHandler), a.registry)
	a.stop = testkit.Start(t, a.queue.Run)
	return a
}

// stored returns the number of actions in the database and one of them.
func (a *actionTest) stored(t *testing.T) (count int, example string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(a.dataDir, "telapi.db"))
	testkit.Must(t, err)
	defer func() { _ = db.Close() }()
	row := db.QueryRowContext(t.Context(), "SELECT count(*), coalesce(max(action), '') FROM browser_actions")
	testkit.Must(t, row.Scan(&count, &example))
	return count, example
}

func (a *actionTest) wantCounts(t *testing.T, wantStored int, reason string, wantDropped int) {
	t.Helper()
	if stored, _ := a.stored(t); stored != wantStored {
		t.Errorf("%d actions are stored, want %d", stored, wantStored)
	}
	testkit.Equal(t, "actions dropped as "+reason, testkit.Metrics(t, a.registry)["telapi_browser_actions_dropped_total "+reason], float64(wantDropped))
}

func TestActionsAreRedactedUnlessTextIsKept(t *testing.T) {
	for keepText, want := range map[bool]string{false: `{"type":"say","text":"[redacted]"}`, true: `{"type":"say","text":"secret"}`} {
		synctest.Test(t, func(t *testing.T) {
			a := startActionQueue(t, keepText)
			action := []byte(`{"type":"say","text":"secret"}`)
			a.queue.AddAction("s", "m", start, action)
			copy(action, "XXXXXXXXXXXXXXXX") // the caller reuses its buffer
			a.queue.AddAction("s", "m", start, []byte(`{"type":"repeated"}`))
			a.stop()
			if count, got := a.stored(t); count != 1 || got != want {
				t.Errorf("keepText %v: stored %d actions such as %s, want one: %s", keepText, count, got, want)
			}
		})
	}
}

func TestActionsAreWrittenAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startActionQueue(t, false)
		a.store.unavailable.Store(true)
		const queued, maxCalls = 3*session.ActionBatchSize + 1, 100
		for i := range queued {
			a.queue.AddAction("s", fmt.Sprint(i), start, []byte(`{}`))
		}
		time.Sleep(time.Minute)
		a.store.unavailable.Store(false)
		time.Sleep(time.Minute)
		a.stop()
		a.wantCounts(t, queued, "shutdown", 0)
		if calls := a.store.calls.Load(); calls > maxCalls {
			t.Errorf("the queue called the store %d times in two minutes, want at most %d", calls, maxCalls)
		}
	})
}

func TestActionQueueIsBoundedAndCountsDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startActionQueue(t, true)
		a.store.unavailable.Store(true)
		const large = 600
		payload := []byte(`{"x":"` + strings.Repeat("x", 15<<10) + `"}`)
		for i := range large {
			a.queue.AddAction("large", fmt.Sprint(i), start, payload)
		}
		wantStored := session.ActionQueueBytes / len(payload)
		a.wantCounts(t, 0, "full", large-wantStored)

		a.store.unavailable.Store(false)
		time.Sleep(time.Minute)
		a.store.unavailable.Store(true)
		const maxActions, excess = session.ActionQueueBytes / session.MinActionBytes, 5
		for i := range maxActions + excess {
			a.queue.AddAction("small", fmt.Sprint(i), start, []byte(`{}`))
		}
		a.wantCounts(t, wantStored, "full", large-wantStored+excess)
		a.stop() // the database stays unavailable
		a.wantCounts(t, wantStored, "shutdown", maxActions)
	})
}

func TestTooLargeActionIsDropped(t *testing.T) {
	action := func(size int) []byte {
		const empty = `{"x":""}`
		return []byte(empty[:6] + strings.Repeat("x", size-len(empty)) + empty[6:])
	}
	a := startActionQueue(t, true)
	a.queue.AddAction("s", "largest", start, action(session.MaxActionBytes))
	a.queue.AddAction("s", "too large", start, action(session.MaxActionBytes+1))
	a.stop()
	a.wantCounts(t, 1, "too_large", 1)

	a = startActionQueue(t, false) // its size is that of the redacted action
	a.queue.AddAction("s", "redacted", start, action(session.MaxActionBytes+1))
	a.queue.AddAction("s", "too large", start, []byte(`[1`+strings.Repeat(",1", session.MaxActionBytes/13)+`]`))
	a.stop()
	a.wantCounts(t, 1, "too_large", 1)
}

func TestActionsAboveSessionLimitAreDropped(t *testing.T) {
	const actions, excess = session.MaxActionsBytes / session.MaxActionBytes, 3
	payload := []byte(`{"x":"` + strings.Repeat("x", session.MaxActionBytes-8) + `"}`)
	a := startActionQueue(t, true)
	for i := range actions + excess {
		a.queue.AddAction("s", fmt.Sprint(i), start, payload)
		if i%100 == 99 { // the queue is smaller than the limit
			testkit.Until(t, "the queue is written", func() bool { stored, _ := a.stored(t); return stored == i+1 })
		}
	}
	a.stop()
	a.wantCounts(t, actions, "session_limit", excess)
}

func TestRejectedActionDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startActionQueue(t, true)
		const actions, rejected = 11, 3
		for i := range actions {
			action := `{"x":"valid"}`
			if i == rejected {
				action = "{\"x\":\"\x00\"}" // no database stores a NUL in a text
			}
			a.queue.AddAction("s", fmt.Sprint(i), start, []byte(action))
		}
		time.Sleep(time.Second)
		a.stop()
		a.wantCounts(t, actions-1, "rejected", 1)
	})
}

func TestMalformedActionIsDropped(t *testing.T) {
	a := startActionQueue(t, false)
	a.queue.AddAction("s", "m", start, []byte(`{"x":"sec`))
	a.stop()
	a.wantCounts(t, 0, "malformed", 1)
}

func TestQueuedActionsAreWrittenAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startActionQueue(t, false)
		a.store.unavailable.Store(true)
		a.queue.AddAction("s", "m", start, []byte(`{}`))
		synctest.Wait()
		time.AfterFunc(time.Second, func() { a.store.unavailable.Store(false) }) // during Run's last attempts
		a.stop()
		a.wantCounts(t, 1, "shutdown", 0)
	})
}
