package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"telapi/internal/fault"
)

var start = time.Date(2026, 11, 15, 9, 30, 0, 250_000_000, time.UTC)

// actionStore is a Store of actions that can fail.
type actionStore struct {
	Store
	mu     sync.Mutex
	stored map[string]string
	err    error
	refuse string // an action with this text is refused, and its batch with it
	calls  int
}

func (s *actionStore) AddBrowserActions(_ context.Context, actions []Action) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.err != nil {
		return s.err
	}
	if s.refuse != "" && slices.ContainsFunc(actions, func(a Action) bool { return strings.Contains(string(a.JSON), s.refuse) }) {
		return errors.New("refused")
	}
	for _, a := range actions {
		if _, there := s.stored[a.SessionID+a.MessageID]; !there {
			s.stored[a.SessionID+a.MessageID] = string(a.JSON)
		}
	}
	return nil
}

func (s *actionStore) set(change func(*actionStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func runActions(t *testing.T, s *actionStore, keepText bool) (a *ActionQueue, stop func()) {
	t.Helper()
	a = NewActionQueue(s, keepText, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) })
	return a, func() { cancel(); running.Wait() }
}

func dropped(a *ActionQueue, reason string) float64 {
	var m dto.Metric
	if err := a.dropped.WithLabelValues(reason).Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

func TestActionsAreRedactedUnlessTextIsKept(t *testing.T) {
	for keepText, want := range map[bool]string{false: `{"type":"say","text":"[redacted]"}`, true: `{"type":"say","text":"secret"}`} {
		synctest.Test(t, func(t *testing.T) {
			s := &actionStore{stored: map[string]string{}}
			a, stop := runActions(t, s, keepText)
			frame := []byte(`{"type":"say","text":"secret"}`)
			a.AddAction("s", "m", start, frame)
			copy(frame, "XXXXXXXXXXXXXXXX") // the caller's buffer is used again
			a.AddAction("s", "m", start, []byte(`{"type":"repeated"}`))
			synctest.Wait()
			if s.stored["sm"] != want || len(s.stored) != 1 {
				t.Errorf("keepText %v: stored %v", keepText, s.stored)
			}
			stop()
		})
	}
}

func TestActionsAreWrittenAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &actionStore{stored: map[string]string{}, err: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, false)
		const n = 3*actionBatchSize + 1
		for i := range n {
			a.AddAction("s", fmt.Sprint(i), start, []byte(`{}`))
		}
		time.Sleep(time.Minute)
		s.set(func(s *actionStore) { s.err = nil })
		time.Sleep(time.Minute)
		stop()
		if len(s.stored) != n || s.calls > 100 {
			t.Errorf("%d of %d stored in %d calls", len(s.stored), n, s.calls)
		}
	})
}

func TestActionQueueIsBoundedAndCountsDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &actionStore{stored: map[string]string{}, err: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, true)
		large := []byte(`{"x":"` + strings.Repeat("x", 60<<10) + `"}`)
		for i := range 200 {
			a.AddAction("large", fmt.Sprint(i), start, large)
		}
		if fit := float64(actionQueueBytes / len(large)); dropped(a, "full") != 200-fit {
			t.Errorf("%v were dropped, want %v", dropped(a, "full"), 200-fit)
		}
		s.set(func(s *actionStore) { s.err = nil })
		time.Sleep(time.Minute)
		s.set(func(s *actionStore) { s.err = fault.Unavailable("The database", nil) })
		before, maxActions := dropped(a, "full"), actionQueueBytes/minActionBytes
		for i := range maxActions + 5 {
			a.AddAction("small", fmt.Sprint(i), start, []byte(`{}`))
		}
		if got := dropped(a, "full") - before; got != 5 {
			t.Errorf("%v were dropped, want 5", got)
		}
		stop() // the database stays unavailable
		if dropped(a, "shutdown") != float64(maxActions) {
			t.Errorf("%v were lost at shutdown", dropped(a, "shutdown"))
		}
	})
}

func TestRejectedActionDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &actionStore{stored: map[string]string{}, refuse: "poison"}
		a, stop := runActions(t, s, true)
		for i := range 10 {
			a.AddAction("s", fmt.Sprint(i), start, fmt.Appendf(nil, `{"x":%q}`, map[bool]string{true: "poison", false: "fine"}[i == 3]))
		}
		a.AddAction("s", "last", start, []byte(`{}`))
		time.Sleep(time.Second)
		stop()
		if len(s.stored) != 10 || dropped(a, "refused") != 1 {
			t.Errorf("stored %d, refused %v", len(s.stored), dropped(a, "refused"))
		}
	})
}

func TestMalformedActionIsDropped(t *testing.T) {
	a := NewActionQueue(&actionStore{}, false, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a.AddAction("s", "m", start, []byte(`{"x":"sec`))
	if dropped(a, "malformed") != 1 {
		t.Error("it was queued")
	}
}

func TestQueuedActionsAreWrittenAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &actionStore{stored: map[string]string{}, err: fault.Unavailable("The database", nil)}
		a, stop := runActions(t, s, false)
		a.AddAction("s", "m", start, []byte(`{}`))
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			s.set(func(s *actionStore) { s.err = nil })
		}()
		stop()
		if len(s.stored) != 1 || dropped(a, "shutdown") != 0 {
			t.Errorf("stored %v", s.stored)
		}
	})
}
