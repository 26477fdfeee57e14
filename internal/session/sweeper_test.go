package session

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
)

func (w *world) sweep(t *testing.T) {
	t.Helper()
	if err := w.sweeper.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (w *world) connected(t *testing.T, token string) string {
	t.Helper()
	s, err := w.enter(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	w.live[s.ID] = true
	return s.ID
}

func (w *world) endedAs(id string) State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions[id].EndedAs
}

func TestSessionsAreSweptWhenTheirTimeHasCome(t *testing.T) {
	w := newWorld()
	unredeemed := w.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
	long := w.connected(t, w.issue(t, `{"endpointId":"ep","maxSessionSeconds":3600}`).Token)
	w.sweep(t)
	if w.endedAs(unredeemed)+w.endedAs(long) != "" {
		t.Error("swept before their time")
	}
	w.pass(time.Minute)
	w.sweep(t)
	w.sweep(t)
	if w.endedAs(unredeemed) != Expired || w.endedAs(long) != "" {
		t.Errorf("unredeemed %q, connected %q", w.endedAs(unredeemed), w.endedAs(long))
	}
	w.pass(time.Hour)
	w.sweep(t)
	if w.endedAs(long) != Expired {
		t.Error("a session over its time goes on")
	}
	want := []string{"ended " + unredeemed + " expired", "ended " + long + " expired"}
	if !slices.Equal(w.events, want) {
		t.Errorf("told %q, want %q", w.events, want)
	}
}

func TestIdleSessionExpiresAndAConnectedOneDoesNot(t *testing.T) {
	w := newWorld()
	left := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	stays := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	w.pass(5 * time.Minute)
	delete(w.live, left)
	w.sweeper.Touch(left)
	w.sweep(t)
	for range 29 {
		w.pass(30 * time.Second)
		w.sweep(t)
		if w.endedAs(left) != "" {
			t.Fatalf("expired %s after its browser left", w.now.Sub(start)-5*time.Minute)
		}
	}
	w.pass(31 * time.Second)
	w.pass(time.Minute)
	w.sweep(t)
	if w.endedAs(left) != Expired || w.endedAs(stays) != "" {
		t.Errorf("idle for 15 minutes: %q; connected: %q", w.endedAs(left), w.endedAs(stays))
	}
	if w.asked > 20 {
		t.Errorf("the key-value store was asked %d times", w.asked)
	}
}

// A call often ends so: the browser leaves, and the runtime ends what is left.
func TestSessionThatItsRuntimeEndedAfterItsBrowserHasEnded(t *testing.T) {
	w := newWorld()
	shown := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	swept := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	idle := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	for _, id := range []string{shown, swept, idle} {
		delete(w.live, id)
		w.over[id] = id != idle
	}
	if got := w.state(t, shown); got != Ended {
		t.Errorf("it is shown as %s", got)
	}
	w.pass(20 * time.Minute)
	w.sweep(t)
	if w.endedAs(shown) != Ended || w.endedAs(swept) != Ended || w.endedAs(idle) != Expired {
		t.Errorf("shown %q, swept %q, idle %q", w.endedAs(shown), w.endedAs(swept), w.endedAs(idle))
	}
}

// A wiped key-value store knows of nobody until connections renew themselves.
func TestWipedStoreEndsNoConversation(t *testing.T) {
	w := newWorld()
	id := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
	for range 80 { // 40 minutes, of which the store knows of the browser in a third
		w.pass(30 * time.Second)
		w.live[id] = (w.now.Unix()/60)%3 == 0
		w.sweep(t)
	}
	if w.endedAs(id) != "" {
		t.Errorf("a connected session ended as %s", w.endedAs(id))
	}
	w.kvAway = fault.Unavailable("The store", nil)
	w.pass(16 * time.Minute)
	wantFault(t, "store away", w.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	if w.endedAs(id) != "" {
		t.Error("a session was taken for idle while nobody could know")
	}
}

func TestEndThatNobodyWasToldOfIsToldLater(t *testing.T) {
	w := newWorld()
	id := w.issue(t, `{"endpointId":"ep","ttlSeconds":10}`).SessionID
	w.pass(10 * time.Second)
	w.kvAway = fault.Unavailable("The store", nil)
	wantFault(t, "store away", w.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	w.kvAway = nil
	w.sweep(t)
	if w.endedAs(id) != Expired || len(w.events) > 0 {
		t.Fatalf("%q, told %v", w.endedAs(id), w.events)
	}
	w.pass(unsettledAfter + time.Second)
	w.sweep(t)
	w.sweep(t)
	if got := strings.Join(w.events, ", "); got != "ended "+id+" expired" {
		t.Errorf("told %q", got)
	}
}

func TestEverySessionIsSweptByOneInstance(t *testing.T) {
	w := newWorld()
	const n = 3 * sweepPage / 2
	for range n {
		w.issue(t, `{"endpointId":"ep","ttlSeconds":10}`)
	}
	w.pass(time.Minute)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			other := NewSweeper(w.service, w, time.Hour, 0, slog.New(slog.DiscardHandler))
			if err := other.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.sweep(t) // what one left to another that was quicker elsewhere
	slices.Sort(w.events)
	if len(w.events) != n || len(slices.Compact(w.events)) != n {
		t.Errorf("told %d times of %d sessions", len(w.events), n)
	}
}

func TestOneRoundSweepsWhateverIsDue(t *testing.T) {
	w := newWorld()
	for range sweepPage + 1 {
		w.issue(t, `{"endpointId":"ep","ttlSeconds":10}`)
	}
	w.pass(time.Minute)
	w.sweep(t)
	for id := range w.sessions {
		if w.endedAs(id) != Expired {
			t.Fatalf("%s goes on", id)
		}
	}
}

func TestWhatWasSeenIsWrittenWhenTheDatabaseIsBackAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		a, b := w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token), w.connected(t, w.issue(t, `{"endpointId":"ep"}`).Token)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.sweeper.Run(ctx) })

		w.pass(time.Second)
		w.mu.Lock()
		w.dbAway = fault.Unavailable("The database", nil)
		w.mu.Unlock()
		w.sweeper.Touch(a)
		time.Sleep(10 * sweepEvery)
		w.mu.Lock()
		w.dbAway = nil
		w.mu.Unlock()
		time.Sleep(2 * sweepEvery)
		if s, _ := w.Session(ctx, a); !s.LastSeenAt.Equal(start.Add(time.Second)) {
			t.Errorf("last seen %v", s.LastSeenAt)
		}
		w.sweeper.Touch(b)
		stop()
		running.Wait()
		if s, _ := w.Session(t.Context(), b); !s.LastSeenAt.Equal(start.Add(time.Second)) {
			t.Errorf("at the end: last seen %v", s.LastSeenAt)
		}
	})
}

func TestOldKeysAreForgotten(t *testing.T) {
	w := newWorld()
	w.issue(t, `{"endpointId":"ep"}`, "old")
	w.pass(24 * time.Hour)
	w.issue(t, `{"endpointId":"ep"}`, "new")
	w.pass(time.Second)
	w.sweep(t)
	if len(w.receipts) != 1 {
		t.Errorf("receipts %v", w.receipts)
	}
}

func TestEndedSessionsAreKeptForTheirRetention(t *testing.T) {
	day := 24 * time.Hour
	for retention, want := range map[time.Duration]time.Duration{30 * day: 30 * day, time.Hour: day, 0: 0} {
		w := newWorld()
		w.sweeper.retention = retention
		id := w.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
		w.pass(time.Minute)
		w.sweep(t)
		w.pass(want)
		if w.sweep(t); w.endedAs(id) != Expired {
			t.Errorf("retention %s: gone too early", retention)
		}
		w.pass(time.Second)
		if w.sweep(t); (w.endedAs(id) == "") != (want > 0) {
			t.Errorf("retention %s: still there is %q", retention, w.endedAs(id))
		}
	}
}
