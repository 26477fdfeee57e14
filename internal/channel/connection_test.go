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

func TestEndedSessionIsNotOpened(t *testing.T) {
	m := &memory{redeemErr: fault.New(fault.SessionEnded, "Ended.")}
	s := NewService(m, m, ConnectionLimits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), nil)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}}, "", "")
	if c != nil || !fault.Is(err, fault.SessionEnded) || m.offered > 0 || m.released != 2 {
		t.Errorf("opened %v (%v), offered %d times, released %d", c, err, m.offered, m.released)
	}
}

// A session that was redeemed before may have an open connection, which a failed
// one must not replace.
func TestReconnectIsRedeemedBeforeAttach(t *testing.T) {
	m := &memory{redeemErr: fault.New(fault.ServiceUnavailable, "The database is unavailable.")}
	s := NewService(m, m, ConnectionLimits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), nil)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}, Redeemed: true}, "", "")
	if c != nil || !fault.Is(err, fault.ServiceUnavailable) || len(m.leases) > 0 || m.released != 1 {
		t.Errorf("opened %v (%v), attached with leases %v, released %d; want nothing attached and 1 released", c, err, m.leases, m.released)
	}
}

func TestResumeReplaysMissedMessages(t *testing.T) {
	m := &memory{complete: true}
	for n := range 3 {
		m.send(n + 1)
	}
	c, w := openConnection(t, m, at(1).String())
	c.Start(w)
	testkit.Equal(t, "replayed", w.numbers(), "2 3")
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"recovered":true,"count":2`) {
		t.Errorf("last frame is %s", last)
	}
	foreign, w2 := openConnection(t, m, Cursor{"other", "1-1"}.String())
	foreign.Start(w2)
	if last := w2.frames[len(w2.frames)-1]; !strings.Contains(last, `"recovered":false,"count":0`) || w2.numbers() != "" {
		t.Errorf("a foreign cursor got %q", w2.frames)
	}
}

func TestHeartbeatClosesLostConnection(t *testing.T) {
	for outcome, want := range map[Outcome]CloseCode{Owned: 0, NotOwner: CloseReplaced, Expired: CloseStoreUnavailable, Ended: CloseEnded, Lost: CloseHistoryLost} {
		m := &memory{outcome: outcome, complete: true}
		c, w := openConnection(t, m, "")
		c.Start(w)
		c.Heartbeat(t.Context())
		testkit.Equal(t, fmt.Sprintf("%s: closed with", outcome), w.code, want)
		if two := 2 * time.Second; !slices.Equal(m.leases, []time.Duration{two, two}) {
			t.Errorf("leases %v", m.leases)
		}
	}
	m := &memory{outcome: Owned, complete: true}
	c, w := openConnection(t, m, "")
	c.session.ExpiresAt = time.Now()
	c.Start(w)
	if c.Heartbeat(t.Context()); w.code != CloseExpired {
		t.Errorf("expired: closed with %d", w.code)
	}
}

// A failover can lose a Detach that succeeded together with the newest acknowledged
// entry. Only the connection that received the entry as a frame knows it.
func TestClosedConnectionIsDetachedAgain(t *testing.T) {
	for outcome, want := range map[Outcome]int{Appended: 1, Duplicate: 1, "": 0} {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{outcome: outcome}
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			if outcome != "" {
				handle(t, c, object(set("messageId", "00000000-0000-0000-0000-000000000001")))
			}
			c.Close()
			synctest.Wait()
			detached := m.releases()
			time.Sleep(confirmDelay + time.Second)
			if got := m.releases() - detached; got != want || want > 0 && m.owner.LastEntry != "1-1" {
				t.Errorf("frame %q: detached %d times after Close, with newest entry %q, want %d times with 1-1", outcome, got, m.owner.LastEntry, want)
			}
		})
	}
}

// An instance that stops does not wait, but checks first.
func TestStoppingInstanceDetachesAgain(t *testing.T) {
	for after, want := range map[time.Duration]int{confirmDelay / 2: 1, 0: 0} {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{outcome: Appended}
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			handle(t, c, object(set("messageId", "00000000-0000-0000-0000-000000000001")))
			c.Close()
			time.Sleep(after)
			detached := m.releases()
			c.service.Close()
			testkit.Equal(t, fmt.Sprintf("stopped after %v: detached times again", after), m.releases()-detached, want)
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
			handle(t, c, object(set("messageId", "00000000-0000-0000-0000-000000000001")))
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
		err     error
		offered int // after one interval
		metrics [3]float64
	}{
		"claimed":           {&Claim{Claimed: true}, nil, 0, [3]float64{1, 0, 0}},
		"ended":             {nil, nil, 0, [3]float64{}},
		"not offered":       {&Claim{Waiting: time.Hour}, nil, 1, [3]float64{0, 1, 5}}, // the browser waits for 5 s only
		"offered":           {&Claim{Offered: true, Waiting: 3 * time.Second}, nil, 0, [3]float64{0, 1, 3}},
		"store unavailable": {&Claim{}, errors.New("unavailable"), 0, [3]float64{}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{outcome: Owned, claimed: true, complete: true}
			connection, socket := openConnection(t, m, "")
			connection.Start(socket)
			connection.Heartbeat(t.Context()) // as with the first ping
			m.claimed, m.claim, m.err = false, tt.claim, tt.err
			m.mustOffer = true
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
		s := NewService(m, m, ConnectionLimits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
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
	c.Start(socket)
	ready := len(socket.frames)
	list := []string{`{"type":"chat","chat":{"n":1}}`, `{"secret":`, `[1]`, "{\"a\":\"\xff\"}", `{} {}`, `{ }`, ``, `{"type":"chat","chat":{"n":2}}`}
	for i, json := range list {
		c.Messages(at(i), []Message{{at(i + 1), []byte(json)}})
	}
	c.Audio([]byte(`nothing`))
	if got := strings.Join(socket.frames[ready:], "\n"); strings.Count(got, "\n") != 2 || socket.numbers() != "1 2" ||
		!strings.Contains(got, "\n"+`{"streamId":"`+at(6).String()+`"}`+"\n") {
		t.Errorf("the browser received %s, want messages 1, 2 and an empty object", got)
	}
	if n := testkit.MetricValue(t, c.service.metrics.dropped); n != 6 || strings.Count(log.String(), "\n") != 6 || strings.Contains(log.String(), "secret") {
		t.Errorf("%v messages counted as dropped, want 6 in the log, without content:\n%s", n, log.String())
	}
	testkit.Equal(t, "cursor", c.cursor, at(len(list)))
}
