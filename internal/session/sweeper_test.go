package session_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/internal/session"
)

func TestSweepExpiresSessionsAtTheirDeadline(t *testing.T) {
	e := newEnv(t)
	unredeemed := e.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
	long := e.connect(t, `{"endpointId":"ep","maxSessionSeconds":3600}`)
	e.sweep(t)
	if e.session(t, unredeemed).EndedAs+e.session(t, long).EndedAs != "" {
		t.Error("expired before their deadline")
	}
	e.advance(time.Minute)
	e.sweep(t)
	e.sweep(t)
	if e.session(t, unredeemed).EndedAs != session.Expired || e.session(t, long).EndedAs != "" {
		t.Errorf("unredeemed %q, connected %q", e.session(t, unredeemed).EndedAs, e.session(t, long).EndedAs)
	}
	e.advance(time.Hour)
	e.sweep(t)
	if e.session(t, long).EndedAs != session.Expired {
		t.Error("a session did not expire")
	}
	want := []string{unredeemed + " expired", long + " expired"}
	if !slices.Equal(e.channels.ended, want) {
		t.Errorf("ended %q, want %q", e.channels.ended, want)
	}
}

func TestSweepExpiresIdleSessions(t *testing.T) {
	e := newEnv(t)
	left := e.connect(t, `{"endpointId":"ep"}`)
	stays := e.connect(t, `{"endpointId":"ep"}`)
	e.advance(5 * time.Minute)
	e.channels.disconnect(t, left)
	e.sweeper.Touch(left)
	e.sweep(t)
	for range 29 {
		e.advance(30 * time.Second)
		e.sweep(t)
		if e.session(t, left).EndedAs != "" {
			t.Fatalf("expired %s after the disconnect", e.now.Sub(start)-5*time.Minute)
		}
	}
	e.advance(31 * time.Second)
	e.advance(time.Minute)
	e.sweep(t)
	if e.session(t, left).EndedAs != session.Expired || e.session(t, stays).EndedAs != "" {
		t.Errorf("idle for 15 minutes: %q; connected: %q", e.session(t, left).EndedAs, e.session(t, stays).EndedAs)
	}
	if e.channels.queries > 20 {
		t.Errorf("presence was queried %d times", e.channels.queries)
	}
}

// The usual end of a call: the browser disconnects, then the runtime ends the
// session.
func TestRuntimeEndsSessionAfterDisconnect(t *testing.T) {
	e := newEnv(t)
	shown := e.connect(t, `{"endpointId":"ep"}`)
	swept := e.connect(t, `{"endpointId":"ep"}`)
	idle := e.connect(t, `{"endpointId":"ep"}`)
	for _, id := range []string{shown, swept, idle} {
		e.channels.disconnect(t, id)
		if id != idle {
			if err := e.channels.Channels.EndChannel(t.Context(), id, "hangup"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := e.state(t, shown); got != session.Ended {
		t.Errorf("state %s", got)
	}
	e.advance(20 * time.Minute)
	e.sweep(t)
	if e.session(t, shown).EndedAs != session.Ended || e.session(t, swept).EndedAs != session.Ended || e.session(t, idle).EndedAs != session.Expired {
		t.Errorf("shown %q, swept %q, idle %q", e.session(t, shown).EndedAs, e.session(t, swept).EndedAs, e.session(t, idle).EndedAs)
	}
}

// A wiped key-value store has no connections until they are renewed.
func TestWipedStoreDoesNotEndSessions(t *testing.T) {
	e := newEnv(t)
	id := e.connect(t, `{"endpointId":"ep"}`)
	for range 80 { // 40 minutes; the store has the connection in a third of them
		e.advance(30 * time.Second)
		if (e.now.Unix()/60)%3 == 0 {
			e.channels.connect(t, id)
		} else {
			e.channels.disconnect(t, id)
		}
		e.sweep(t)
	}
	if e.session(t, id).EndedAs != "" {
		t.Errorf("a connected session ended as %s", e.session(t, id).EndedAs)
	}
	e.channels.err = errUnavailable
	e.advance(16 * time.Minute)
	wantFault(t, "store unavailable", e.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	if e.session(t, id).EndedAs != "" {
		t.Error("a session was ended as idle while presence was unknown")
	}
}

func TestSweepSettlesEndedSessions(t *testing.T) {
	e := newEnv(t)
	id := e.issue(t, `{"endpointId":"ep","ttlSeconds":10}`).SessionID
	e.advance(10 * time.Second)
	e.channels.err = errUnavailable
	wantFault(t, "store unavailable", e.sweeper.Sweep(t.Context()), fault.ServiceUnavailable)
	e.channels.err = nil
	e.sweep(t)
	if e.session(t, id).EndedAs != session.Expired || len(e.channels.ended) > 0 {
		t.Fatalf("%q, ended %v", e.session(t, id).EndedAs, e.channels.ended)
	}
	e.advance(session.SettleDelay + time.Second)
	e.sweep(t)
	e.sweep(t)
	if got := strings.Join(e.channels.ended, ", "); got != id+" expired" {
		t.Errorf("ended %q", got)
	}
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
			other := e.newSweeper(time.Hour, 0)
			if err := other.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.sweep(t) // settle the rest
	slices.Sort(e.channels.ended)
	if len(e.channels.ended) != n || len(slices.Compact(e.channels.ended)) != n {
		t.Errorf("ended %d times, %d sessions", len(e.channels.ended), n)
	}
}

func TestSweepExpiresAllPages(t *testing.T) {
	e := newEnv(t)
	var ids []string
	for range session.SweepPage + 1 {
		ids = append(ids, e.issue(t, `{"endpointId":"ep","ttlSeconds":10}`).SessionID)
	}
	e.advance(time.Minute)
	e.sweep(t)
	for _, id := range ids {
		if e.session(t, id).EndedAs != session.Expired {
			t.Fatalf("%s has not expired", id)
		}
	}
}

// flaky is a database that fails to record touches while down is set.
type flaky struct {
	session.Store
	down atomic.Bool
}

func (f *flaky) TouchSessions(ctx context.Context, seen map[string]time.Time) error {
	if f.down.Load() {
		return errUnavailable
	}
	return f.Store.TouchSessions(ctx, seen)
}

func TestTouchesAreWrittenAfterOutageAndAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvWithoutChannels(t)
		a, b := e.issue(t, `{"endpointId":"ep"}`), e.issue(t, `{"endpointId":"ep"}`)
		for _, token := range []string{a.Token, b.Token} {
			if _, err := e.redeem(t.Context(), token); err != nil {
				t.Fatal(err)
			}
		}
		store := &flaky{Store: e.db}
		e.service.Store = store
		sweeper := e.newSweeper(15*time.Minute, 0)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { sweeper.Run(ctx) })

		e.advance(time.Second)
		store.down.Store(true)
		sweeper.Touch(a.SessionID)
		time.Sleep(10 * session.SweepInterval)
		if s := e.session(t, a.SessionID); !s.LastSeenAt.Equal(start) {
			t.Errorf("during the outage: last seen %v", s.LastSeenAt)
		}
		store.down.Store(false)
		time.Sleep(2 * session.SweepInterval)
		if s := e.session(t, a.SessionID); !s.LastSeenAt.Equal(start.Add(time.Second)) {
			t.Errorf("after the outage: last seen %v", s.LastSeenAt)
		}
		sweeper.Touch(b.SessionID)
		stop()
		running.Wait()
		if s := e.session(t, b.SessionID); !s.LastSeenAt.Equal(start.Add(time.Second)) {
			t.Errorf("at shutdown: last seen %v", s.LastSeenAt)
		}
	})
}

func TestSweepDeletesOldIdempotencyKeys(t *testing.T) {
	e := newEnv(t)
	e.issue(t, `{"endpointId":"ep"}`, "old")
	e.advance(24 * time.Hour)
	e.issue(t, `{"endpointId":"ep"}`, "new")
	e.advance(time.Second)
	e.sweep(t)
	for key, want := range map[string]bool{"old": false, "new": true} {
		if _, _, err := e.db.SessionByKey(t.Context(), "t1", key, time.Time{}); (err == nil) != want {
			t.Errorf("key %s: %v", key, err)
		}
	}
}

func TestSweepDeletesSessionsAfterRetention(t *testing.T) {
	day := 24 * time.Hour
	for retention, want := range map[time.Duration]time.Duration{30 * day: 30 * day, time.Hour: day, 0: 0} {
		e := newEnv(t)
		e.sweeper = e.newSweeper(15*time.Minute, retention)
		id := e.issue(t, `{"endpointId":"ep","ttlSeconds":60}`).SessionID
		e.advance(time.Minute)
		e.sweep(t)
		e.advance(want)
		if e.sweep(t); e.session(t, id).EndedAs != session.Expired {
			t.Errorf("retention %s: deleted too early", retention)
		}
		e.advance(time.Second)
		if e.sweep(t); (e.session(t, id).EndedAs == "") != (want > 0) {
			t.Errorf("retention %s: not deleted, %q", retention, e.session(t, id).EndedAs)
		}
	}
}
