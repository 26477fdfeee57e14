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

	"telapi/callruntime/wire"
	"telapi/internal/fault"
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
			if got != c.want {
				t.Errorf("offered %s times, want %s", got, c.want)
			}
		})
	}
}

func TestEndedSessionIsNotOpened(t *testing.T) {
	m := &memory{redeemErr: fault.New(fault.SessionEnded, "Ended.")}
	s := NewService(m, m, Limits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), nil)
	c, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}}, "", "")
	if c != nil || !fault.Is(err, fault.SessionEnded) || m.offered > 0 || m.released != 2 {
		t.Errorf("opened %v (%v), offered %d times, released %d", c, err, m.offered, m.released)
	}
}

// A session that was redeemed before may have an open connection, which a failed
// one must not replace.
func TestReconnectIsRedeemedBeforeAttach(t *testing.T) {
	m := &memory{redeemErr: fault.New(fault.ServiceUnavailable, "The database is unavailable.")}
	s := NewService(m, m, Limits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), nil)
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
	if got := w.numbers(); got != "2 3" {
		t.Errorf("replayed %s", got)
	}
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
		if w.code != want {
			t.Errorf("%s: closed with %d, want %d", outcome, w.code, want)
		}
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
