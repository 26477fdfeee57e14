package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestSessionIsOfferedUntilOfferSucceeds(t *testing.T) {
	for name, c := range map[string]struct {
		store *memory
		want  string // offers after Open and after each of three heartbeats; the store recovers after the first
	}{
		"immediately":                             {&memory{}, "1 1 1 1"},
		"after an outage":                         {&memory{err: errors.New("unavailable")}, "0 0 1 1"},
		"by the next connection":                  {&memory{offering: true}, "0 1 1 1"},
		"by the next connection, after an outage": {&memory{offering: true, err: errors.New("unavailable")}, "0 0 1 1"},
		"not while claimed":                       {&memory{claimed: true}, "0 0 0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.store
			m.outcome = Owned
			connection, w := openConnection(t, m, "")
			connection.Start(w)
			got := fmt.Sprint(m.offered)
			for range 3 {
				connection.Heartbeat(t.Context())
				m.err = nil
				got += fmt.Sprintf(" %d", m.offered)
			}
			testkit.Equal(t, "offered times", got, c.want)
		})
	}
}

// A session that was redeemed before may have an open connection, which a failed one must not
// replace. Of another session, the channel must exist before: if it ends later, the channel ends.
func TestSessionIsRedeemedWhenOpened(t *testing.T) {
	ended, unavailable := fault.New(fault.SessionEnded, "Ended."), fault.New(fault.ServiceUnavailable, "The database is unavailable.")
	for name, tt := range map[string]struct {
		number   string
		redeemed bool
		err      error
		order    string
		released int
	}{
		"first connection":               {"1", false, nil, " attach redeem", 0},
		"earlier one was not redeemed":   {"2", false, nil, " attach redeem", 0},
		"redeemed":                       {"2", true, nil, " redeem attach", 0},
		"redeemed, and channel lost":     {"1", true, nil, " redeem attach redeem", 0},
		"ended":                          {"1", false, ended, " attach redeem", 2},
		"redeemed, database unavailable": {"2", true, unavailable, " redeem", 1},
	} {
		m := &memory{number: tt.number, redeemErr: tt.err}
		s := NewService(m, m, ConnectionLimits{PingIntervalMs: 1000}, "", slog.New(slog.DiscardHandler), nil)
		session := SessionInfo{Offer: wire.Offer{SessionID: sessionID}, ExpiresAt: time.Now().Add(time.Hour), Redeemed: tt.redeemed}
		c, err := s.Open(t.Context(), session, "", "")
		testkit.WantError(t, name, err, tt.err)
		testkit.Equal(t, name+": order", m.order, tt.order)
		if (c == nil) != (tt.err != nil) || m.released != tt.released || (m.offered > 0) != (tt.err == nil) {
			t.Errorf("%s: opened %v, released %d, offered %d times", name, c, m.released, m.offered)
		}
	}
}

// A failover can lose a Detach that succeeded together with the newest acknowledged
// entry. Only the connection that received the entry as a frame knows it.
func TestClosedConnectionIsDetachedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		store     *memory
		frames    int
		want      int    // times
		lastEntry string // that the connection knows
	}{
		"frame appended":                         {&memory{outcome: Appended}, 1, 1, "1-1"},
		"frame appended, store unavailable":      {&memory{outcome: Appended, detachErr: errors.New("unavailable")}, 1, 2, "1-1"},
		"frame repeated":                         {&memory{outcome: Duplicate}, 1, 1, "1-1"},
		"entry ID hidden until replicas have it": {&memory{outcome: Appended, noEntryID: true}, 1, 0, "0-7"},
		"no frames":                              {&memory{}, 0, 0, "0-7"},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := tt.store
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			for range tt.frames {
				handle(t, c, object(nil))
			}
			c.Close()
			synctest.Wait()
			if m.releases() != 2 || m.touched != 1 { // unsubscribed and detached
				t.Errorf("released %d times, touched %d times", m.releases(), m.touched)
			}
			m.failDetach(nil)
			time.Sleep(time.Hour)
			testkit.Equal(t, "detached times later", m.releases()-2, tt.want)
			testkit.Equal(t, "newest entry", m.owner.LastEntry, tt.lastEntry)
		})
	}
}

func TestFailedDetachIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{detachErr: errors.New("unavailable")}
		c, _ := openConnection(t, m, "")
		c.Close()
		detached := m.releases()
		for _, step := range []struct {
			after time.Duration
			want  int // times
		}{{cancelInterval, 1}, {storeTimeout - 1, 0}, {1, 1}, {time.Hour, detachAttempts - 2}} {
			time.Sleep(step.after)
			synctest.Wait()
			testkit.Equal(t, fmt.Sprintf("detached times %v later", step.after), m.releases()-detached, step.want)
			detached = m.releases()
		}
	})
}

// An instance that stops does not wait, but detaches once more if that may have been lost.
func TestStoppingInstanceDetachesAgain(t *testing.T) {
	for _, tt := range []struct {
		after  time.Duration
		failed error // of the first time
		want   int
	}{{confirmDelay / 2, nil, 1}, {minConfirmDelay, nil, 0}, {0, nil, 0}, {0, errors.New("unavailable"), 1}} {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{outcome: Appended, detachErr: tt.failed}
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			handle(t, c, object(nil))
			c.Close()
			time.Sleep(tt.after)
			detached := m.releases()
			c.service.Close()
			testkit.Equal(t, fmt.Sprintf("stopped after %v, first %v: detached times again", tt.after, tt.failed), m.releases()-detached, tt.want)
		})
	}
}

// A store that is unavailable when the instance stops can be back a little later. The connection
// is detached then, whether it was detached before or not.
func TestStoppingInstanceRetriesDetach(t *testing.T) {
	for name, detached := range map[string]bool{"again": true, "first": false} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{outcome: Appended}
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			handle(t, c, object(nil))
			unavailable := fault.Unavailable("The store", errors.New("down"))
			if !detached {
				m.failDetach(unavailable)
			}
			c.Close()
			time.Sleep(confirmDelay / 2)
			m.failDetach(unavailable)
			failed := make(chan int, 1)
			time.AfterFunc(storeTimeout/2, func() { failed <- m.failDetach(nil) })
			c.service.Close()
			if before, after := <-failed, m.releases(); after != before+1 {
				t.Errorf("detached %d times after the store was back, want once", after-before)
			}
		})
	}
}

func TestStoppingInstanceDoesNotWaitForLongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{detachErr: fault.Unavailable("The store", errors.New("down"))}
		c, _ := openConnection(t, m, "")
		c.Close()
		start := time.Now()
		c.service.Close()
		testkit.Equal(t, "waited", time.Since(start), storeTimeout)
	})
}

func TestCloseCancelsAndAwaitsBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		ended := false
		m.reading = func(ctx context.Context) error {
			<-ctx.Done()
			ended = true
			return ctx.Err()
		}
		c.Gap()
		synctest.Wait()
		c.service.Close()
		if !ended {
			t.Error("Close did not wait")
		}
		m.reading = func(context.Context) error { t.Error("work started after Close"); return nil }
		c.Gap()
		c.Replaced("another")
		c.Closed("ended")
		synctest.Wait()
		if len(m.leases) != 1 || len(m.ended) != 0 {
			t.Errorf("leases %v, ended %v", m.leases, m.ended)
		}
	})
}

func TestRunOffersUnclaimedSessions(t *testing.T) {
	for name, tt := range map[string]struct {
		claim   *Claim
		failed  bool // the connection's last offer
		err     error
		offered int // after one interval
		metrics [3]float64
	}{
		"claimed":           {&Claim{Claimed: true}, true, nil, 0, [3]float64{1, 0, 0}},
		"ended":             {nil, true, nil, 0, [3]float64{}},
		"not offered":       {&Claim{Waiting: time.Hour}, false, nil, 1, [3]float64{0, 1, 5}}, // the browser waits for 5 s only
		"offered":           {&Claim{Offered: true, Waiting: 3 * time.Second}, false, nil, 0, [3]float64{0, 1, 3}},
		"last offer failed": {&Claim{Offered: true, Waiting: 3 * time.Second}, true, nil, 1, [3]float64{0, 1, 3}},
		"store unavailable": {&Claim{}, true, errors.New("unavailable"), 0, [3]float64{}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{outcome: Owned, claimed: true, complete: true}
			connection, socket := openConnection(t, m, "")
			connection.Start(socket)
			connection.Heartbeat(t.Context()) // as with the first ping
			m.claimed, m.claim, m.err = false, tt.claim, tt.err
			m.mustOffer = true
			connection.reoffer.Store(tt.failed)
			s := connection.service
			go s.Run(t.Context())
			time.Sleep(claimInterval)
			synctest.Wait()
			got := [3]float64{testkit.MetricValue(t, s.metrics.claimed), testkit.MetricValue(t, s.metrics.waiting), testkit.MetricValue(t, s.metrics.oldestWait)}
			if m.offered != tt.offered || got != tt.metrics {
				t.Errorf("offered %d times, metrics %v; want %d, %v", m.offered, got, tt.offered, tt.metrics)
			}
			m.err = nil
			connection.Close()
			time.Sleep(claimInterval)
			synctest.Wait()
			testkit.Equal(t, "sessions wait after the connection was closed", testkit.MetricValue(t, s.metrics.waiting), 0)
		})
	}
}

func TestClaimsAreReadInBatches(t *testing.T) {
	m := &memory{claim: &Claim{Claimed: true}}
	c, _ := openConnection(t, m, "")
	for range claimBatch {
		c.service.open.Store(&Connection{session: c.session}, nil)
	}
	c.service.checkClaims(t.Context())
	testkit.Equal(t, "claimed sessions", testkit.MetricValue(t, c.service.metrics.claimed), claimBatch+1)
	testkit.Equal(t, "queries", m.queries, [][]string{slices.Repeat([]string{sessionID}, claimBatch), {sessionID}})
}

func TestExpiredClaimsAreCounted(t *testing.T) {
	m := &memory{outcome: Owned, claimed: true}
	c, socket := openConnection(t, m, "")
	c.Start(socket)
	m.claimed, m.mustOffer, m.expired = false, true, true
	c.Heartbeat(t.Context())
	m.expired = false
	c.Heartbeat(t.Context())
	if expired, offers := testkit.MetricValue(t, c.service.metrics.expired), testkit.MetricValue(t, c.service.metrics.offers); expired != 1 || offers != 2 {
		t.Errorf("%v expired claims and %v offers, want 1 and 2", expired, offers)
	}
}

func TestReofferUsesStoredOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		s := NewService(m, m, ConnectionLimits{PingIntervalMs: 1000}, "", slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		s.Reoffer([]byte(`{"sessionId":"ses_1","expiresAt":99999999999999}`))
		s.Reoffer([]byte(`broken`))
		synctest.Wait()
		if n := testkit.MetricValue(t, s.metrics.offers); n != 1 || m.offered != 1 {
			t.Errorf("offered %d times, counted %v; want 1", m.offered, n)
		}
	})
}

// A message of the runtime that is not one JSON object never reaches the browser,
// and does not delay the messages behind it.
func TestInvalidMessagesAreDropped(t *testing.T) {
	var log strings.Builder
	m := &memory{complete: true}
	c, socket := openConnection(t, m, "")
	c.service.log = slog.New(slog.NewTextHandler(&log, nil))
	c.Audio([]byte(`{}`)) // before there is a socket
	c.Start(socket)
	ready := len(socket.frames)
	list := []string{`{"type":"chat","chat":{"n":1}}`, `{"secret":`, `[1]`, "{\"a\":\"\xff\"}", `{} {}`, `{ }`, ``, `{"type":"chat","chat":{"n":2}}`}
	for i, json := range list {
		c.Messages(at(i), []Message{{at(i + 1), []byte(json)}})
	}
	c.Audio([]byte(`nothing`))
	c.Audio([]byte(`{}`))
	testkit.Equal(t, "audio frames", socket.audio, 1)
	testkit.Equal(t, "frames", socket.frames[ready:], []string{
		`{"streamId":"` + at(1).String() + `","type":"chat","chat":{"n":1}}`, `{"streamId":"` + at(6).String() + `"}`, `{"streamId":"` + at(8).String() + `","type":"chat","chat":{"n":2}}`,
	})
	if n := testkit.MetricValue(t, c.service.metrics.dropped); n != 6 || strings.Count(log.String(), "\n") != 6 || strings.Contains(log.String(), "secret") {
		t.Errorf("%v messages counted as dropped, want 6 in the log, without content:\n%s", n, log.String())
	}
	testkit.Equal(t, "cursor", c.cursor, at(len(list)))
}

func TestDefaultHistoryIsThatOfChannels(t *testing.T) {
	limits, history := DefaultConnectionLimits(), wire.DefaultChannelLimits()
	testkit.Equal(t, "seconds", time.Duration(limits.HistorySeconds)*time.Second, time.Duration(history.HistoryMs)*time.Millisecond)
}
