package session_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/internal/session"
	"telapi/test/testkit"
)

func TestSweepExpiresSessionsAtTheirDeadline(t *testing.T) {
	e := newEnv(t)
	unredeemed := e.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
	connected := e.connect(t, `{"endpointId":"ep","maxSessionSeconds":3600}`)
	e.sweep(t)
	e.wantFinalState(t, unredeemed, "unredeemed, before redeemBy", notEnded)
	e.wantFinalState(t, connected, "connected, before the deadline", notEnded)
	e.advance(time.Minute)
	e.sweep(t)
	e.sweep(t)
	e.wantFinalState(t, unredeemed, "unredeemed, after redeemBy", session.Expired)
	e.wantFinalState(t, connected, "connected, before the deadline", notEnded)
	e.advance(time.Hour)
	e.sweep(t)
	e.wantFinalState(t, connected, "connected, after the deadline", session.Expired)
	e.wantEnded(t, unredeemed+" expired", connected+" expired")
}

func TestSweepExpiresIdleSessions(t *testing.T) {
	e := newEnv(t)
	idle := e.connect(t, `{"endpointId":"ep"}`)
	connected := e.connect(t, `{"endpointId":"ep"}`)
	e.advance(5 * time.Minute)
	e.channels.disconnect(t, idle)
	e.sweeper.Touch(idle)
	e.sweep(t)
	for range 29 {
		e.advance(30 * time.Second)
		e.sweep(t)
		if e.session(t, idle).EndedAs != notEnded {
			t.Fatalf("expired %s after the disconnect, want 15m", e.now.Sub(start)-5*time.Minute)
		}
	}
	e.advance(31*time.Second + time.Minute)
	e.sweep(t)
	e.wantFinalState(t, idle, "idle for 15 minutes", session.Expired)
	e.wantFinalState(t, connected, "connected for 20 minutes", notEnded)
	if e.channels.presenceCalls > 20 {
		t.Errorf("presence was queried %d times in 31 sweeps, want at most 20", e.channels.presenceCalls)
	}
}

// The usual end of a call: the browser disconnects, then the runtime ends the
// session.
func TestRuntimeEndsSessionAfterDisconnect(t *testing.T) {
	e := newEnv(t)
	queried := e.connect(t, `{"endpointId":"ep"}`) // its state is queried before the sweep
	swept := e.connect(t, `{"endpointId":"ep"}`)
	idle := e.connect(t, `{"endpointId":"ep"}`) // the runtime does not end it
	for _, id := range []string{queried, swept, idle} {
		e.channels.disconnect(t, id)
		if id != idle {
			testkit.Must(t, e.channels.Channels.EndChannel(t.Context(), id, "hangup"))
		}
	}
	e.wantState(t, queried, "before the sweep", session.Ended)
	e.advance(20 * time.Minute)
	e.sweep(t)
	e.wantFinalState(t, queried, "queried before the sweep", session.Ended)
	e.wantFinalState(t, swept, "ended by the runtime", session.Ended)
	e.wantFinalState(t, idle, "not ended by the runtime", session.Expired)
}

// A wiped key-value store has no connections until they are renewed.
func TestWipedStoreDoesNotEndSessions(t *testing.T) {
	e := newEnv(t)
	id := e.connect(t, `{"endpointId":"ep"}`)
	for range 80 { // 40 minutes; the store has the connection in every third minute
		e.advance(30 * time.Second)
		if (e.now.Unix()/60)%3 == 0 {
			e.channels.connect(t, id)
		} else {
			e.channels.disconnect(t, id)
		}
		e.sweep(t)
	}
	e.wantFinalState(t, id, "connected, but missing in the store at times", notEnded)
	e.channels.err = errUnavailable
	e.advance(16 * time.Minute)
	testkit.WantFault(t, "store unavailable", e.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	e.wantFinalState(t, id, "presence unknown", notEnded)
}

func TestSweepSettlesEndedSessions(t *testing.T) {
	e := newEnv(t)
	id := e.issue(t, `{"endpointId":"ep","ttlSeconds":10}`).SessionID
	e.advance(10 * time.Second)
	e.channels.err = errUnavailable
	testkit.WantFault(t, "store unavailable", e.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	e.channels.err = nil
	e.sweep(t)
	e.wantFinalState(t, id, "expired while the key-value store was unavailable", session.Expired)
	e.wantEnded(t) // not before SettleDelay
	e.advance(session.SettleDelay + time.Second)
	e.sweep(t)
	e.sweep(t)
	e.wantEnded(t, id+" expired")
}

func TestConcurrentSweepersEndEachSessionOnce(t *testing.T) {
	e := newEnv(t)
	const n = 3 * session.SweepPage / 2
	for range n {
		e.issue(t, `{"endpointId":"ep","ttlSeconds":10}`)
	}
	e.advance(time.Minute)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			// On a busy machine a sweeper may wait too long for the database. The
			// next sweep handles the rest.
			if err := e.newSweeper(time.Hour, 0).Sweep(t.Context()); err != nil && !fault.Is(err, fault.ServiceUnavailable) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.sweep(t) // settle the rest
	slices.Sort(e.channels.ended)
	if len(e.channels.ended) != n || len(slices.Compact(e.channels.ended)) != n {
		t.Errorf("%d calls ended a channel, want one for each of %d sessions", len(e.channels.ended), n)
	}
}

// touchStore is a database that fails to record touches while unavailable is set.
type touchStore struct {
	session.Store
	unavailable atomic.Bool
}

func (s *touchStore) TouchSessions(ctx context.Context, seen map[string]time.Time) error {
	if s.unavailable.Load() {
		return errUnavailable
	}
	return s.Store.TouchSessions(ctx, seen)
}

func TestTouchesAreWrittenAfterOutageAndAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvWithoutChannels(t)
		first, second := e.issue(t, `{"endpointId":"ep"}`), e.issue(t, `{"endpointId":"ep"}`)
		for _, token := range []string{first.Token, second.Token} {
			testkit.Must(t, testkit.ErrorOf(e.redeem(t.Context(), token)))
		}
		wantLastSeen := func(when, id string, want time.Time) {
			t.Helper()
			if got := e.session(t, id).LastSeenAt; !got.Equal(want) {
				t.Errorf("%s: last seen at %v, want %v", when, got, want)
			}
		}
		store := &touchStore{Store: e.db}
		e.service.Store = store
		sweeper := e.newSweeper(15*time.Minute, 0)
		stop := testkit.Start(t, sweeper.Run)
		e.advance(time.Second)
		store.unavailable.Store(true)
		sweeper.Touch(first.SessionID)
		time.Sleep(10 * session.SweepInterval)
		wantLastSeen("during the outage", first.SessionID, start)
		store.unavailable.Store(false)
		time.Sleep(2 * session.SweepInterval)
		wantLastSeen("after the outage", first.SessionID, start.Add(time.Second))
		sweeper.Touch(second.SessionID)
		stop()
		wantLastSeen("after shutdown", second.SessionID, start.Add(time.Second))
	})
}

func TestSweepDeletesOldIdempotencyKeys(t *testing.T) {
	e := newEnv(t)
	e.issue(t, `{"endpointId":"ep"}`, "old")
	e.advance(24 * time.Hour)
	e.issue(t, `{"endpointId":"ep"}`, "new")
	e.advance(time.Second)
	e.sweep(t)
	for key, kept := range map[string]bool{"old": false, "new": true} {
		if _, _, err := e.db.SessionByKey(t.Context(), "t1", key, time.Time{}); (err == nil) != kept {
			t.Errorf("key %s: error %v, want the key to be kept: %v", key, err, kept)
		}
	}
}

func TestSweepDeletesSessionsAfterRetention(t *testing.T) {
	const day = 24 * time.Hour
	const forever = 0
	for retention, keptFor := range map[time.Duration]time.Duration{
		30 * day:  30 * day,
		time.Hour: day, // the session's idempotency key is remembered for a day
		0:         forever,
	} {
		e := newEnv(t)
		e.sweeper = e.newSweeper(15*time.Minute, retention)
		id := e.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
		e.advance(time.Minute)
		e.sweep(t)
		e.advance(keptFor)
		e.sweep(t)
		if e.session(t, id).ID == "" {
			t.Errorf("retention %s: deleted in %s or less after the end", retention, keptFor)
		}
		e.advance(time.Second)
		e.sweep(t)
		testkit.Equal(t, fmt.Sprintf("retention %s: deleted", retention), e.session(t, id).ID == "", keptFor != forever)
	}
}
