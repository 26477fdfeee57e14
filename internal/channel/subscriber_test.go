package channel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestMessagesArriveOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true}
		c, w := openConnection(t, m, "")
		m.subscriber.Messages(m.send(1)) // before Start
		c.Start(w)
		synctest.Wait()
		m.subscriber.Messages(m.send(2))
		m.send(3)                        // not announced
		m.subscriber.Messages(m.send(4)) // reveals the gap
		synctest.Wait()
		m.subscriber.Messages(at(1), m.history[1:2]) // repeated
		m.send(5)
		m.send(6)
		m.subscriber.Messages(at(3), m.history[3:]) // partly repeated
		m.send(7)
		m.subscriber.Gap()
		synctest.Wait()
		testkit.Equal(t, "messages of the browser", w.numbers(), "1 2 3 4 5 6 7")
		if !strings.Contains(w.frames[0], `"event":"ready"`) || !strings.Contains(w.frames[1], `"streamId":"`+at(1).String()) {
			t.Errorf("frames are %q", w.frames[:2])
		}
		testkit.Equal(t, "offers", m.offered, 1)
	})
}

func TestCatchUpRepeatsWhileMessagesArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.send(1)
		n := 1
		m.reading = func(ctx context.Context) error {
			time.Sleep(time.Second)
			if n < 10 {
				n++
				c.Messages(m.send(n))
			}
			return ctx.Err()
		}
		c.Gap()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := socket.numbers(); got != "1 2 3 4 5 6 7 8 9 10" || socket.code != 0 {
			t.Errorf("got %s, closed with %d", got, socket.code)
		}
	})
}

func TestFailedCatchUpClosesSocket(t *testing.T) {
	for want, m := range map[CloseCode]*memory{
		CloseHistoryLost:      {complete: false},
		CloseStoreUnavailable: {complete: true, err: fault.Unavailable("The store", nil)},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, w := openConnection(t, m, "")
			c.Start(w)
			m.send(1)
			m.subscriber.Messages(m.send(2))
			synctest.Wait()
			if w.code != want || w.numbers() != "" {
				t.Errorf("closed with %d after %q, want %d and nothing", w.code, w.numbers(), want)
			}
		})
	}
}

func TestSlowReaderIsClosed(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	w.full = true
	m.subscriber.Messages(m.send(1))
	testkit.Equal(t, "close code", w.code, CloseSlowReader)
}

func TestReplacedConnectionIsClosed(t *testing.T) {
	for outcome, want := range map[Outcome]CloseCode{Owned: 0, NotOwner: CloseReplaced, Ended: CloseEnded} {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				m := &memory{outcome: outcome, complete: true}
				c, w := openConnection(t, m, "")
				if !early {
					c.Start(w)
				}
				m.subscriber.Replaced("another")
				if outcome == Ended && early {
					m.subscriber.Closed("over")
				}
				synctest.Wait()
				if early {
					c.Start(w)
				}
				synctest.Wait()
				testkit.Equal(t, fmt.Sprintf("%s, before Start: %t: closed with", outcome, early), w.code, want)
			})
		}
	}
}

func TestExpiredSessionClosesWithExpired(t *testing.T) {
	for when, want := range map[time.Duration]CloseCode{time.Hour - time.Millisecond: CloseEnded, time.Hour: CloseExpired} {
		for name, notice := range map[string]func(*Connection){
			"closed notice": func(c *Connection) { c.Closed("expired") },
			"heartbeat":     func(c *Connection) { c.Heartbeat(t.Context()) },
			"append":        func(c *Connection) { handle(t, c, object(nil)) },
		} {
			synctest.Test(t, func(t *testing.T) {
				c, socket := openConnection(t, &memory{outcome: Ended}, "")
				c.Start(socket)
				time.Sleep(when)
				notice(c)
				synctest.Wait()
				testkit.Equal(t, fmt.Sprintf("%s, after %s: close code", name, when), socket.code, want)
			})
		}
	}
}

// A failover loses the newest messages, and the runtime sends others with the same
// numbers. The browser must reconnect instead of missing them.
func TestReusedNumbersAreDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.subscriber.Messages(m.send(1))
		m.subscriber.Messages(m.send(2))
		m.complete = false // the store does not know the cursor any more
		reused := Message{Cursor{"e", "2-9"}, []byte(`{"type":"chat","chat":{"n":22}}`)}
		m.subscriber.Messages(at(1), []Message{reused})
		synctest.Wait()
		if got := socket.numbers(); got != "1 2" || socket.code != CloseHistoryLost {
			t.Errorf("the browser got %s and close code %d, want 1 2 and %d", got, socket.code, CloseHistoryLost)
		}
	})
}

func TestHeartbeatFindsMissedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, outcome: Owned}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.subscriber.Messages(m.send(1))
		m.send(2) // not announced
		c.Heartbeat(t.Context())
		synctest.Wait()
		testkit.Equal(t, "the browser", socket.numbers(), "1 2")
		if m.owner.Cursor != at(1) || m.owner.Number != "1" || m.owner.ConnectionID != c.id {
			t.Errorf("renewed as %+v, want cursor %v", m.owner, at(1))
		}
	})
}

// A notice that asks for a renewal is not repeated, but the reply to the renewal can be lost.
func TestRequestedRenewalIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, outcome: Owned}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.send(1) // not announced
		m.err = errors.New("reply lost")
		m.subscriber.Replaced("")
		synctest.Wait()
		m.mu.Lock()
		m.err = nil
		m.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		testkit.Equal(t, "the browser", socket.numbers(), "1")
	})
}

func TestNoticesDuringRenewalCauseOneMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, outcome: Owned, renewTime: time.Second}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		for range 2 { // also later
			m.leases = nil
			for range 10 {
				m.subscriber.Replaced("")
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			testkit.Equal(t, "renewals", len(m.leases), 2)
		}
	})
}

// The store is back after the attempts for an earlier notice.
func TestNoticeDuringFailedRenewalIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, outcome: Owned, renewTime: storeTimeout - time.Millisecond, err: errors.New("reply lost")}
		c, socket := openConnection(t, m, "")
		c.Start(socket)
		m.send(1) // not announced
		m.subscriber.Replaced("")
		synctest.Wait()
		m.subscriber.Replaced("")
		time.Sleep(storeTimeout)
		m.mu.Lock()
		m.err = nil
		m.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		testkit.Equal(t, "the browser", socket.numbers(), "1")
	})
}

// Attach may have succeeded although its reply was lost, or may be under way. When
// Open fails, it is cancelled or its deadline has passed.
func TestFailedAttachIsCancelled(t *testing.T) {
	for name, tt := range map[string]struct {
		cause, detachErr error
		took             time.Duration // by Open
		least, most      int           // calls that release something
	}{
		"reply lost":        {cause: errors.New("reply lost"), least: 2, most: 2}, // unsubscribed and detached
		"store unavailable": {cause: errors.New("reply lost"), detachErr: errors.New("unavailable"), took: attachTimeout, least: 10 + detachAttempts, most: 100},
		"not sent":          {cause: ErrNotSent, least: 1, most: 1},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{attachErr: fault.Unavailable("The key-value store", tt.cause), detachErr: tt.detachErr}
			s := NewService(m, m, DefaultConnectionLimits(), slog.New(slog.DiscardHandler), nil)
			defer s.Close()
			since := time.Now()
			_, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}, ExpiresAt: time.Now().Add(time.Hour)}, "", "")
			if took := time.Since(since); !fault.Is(err, fault.ServiceUnavailable) || took != tt.took {
				t.Fatalf("open: %v after %v, want %s after %v", err, took, fault.ServiceUnavailable, tt.took)
			}
			m.mu.Lock()
			number := m.owner.Number
			m.mu.Unlock()
			if got := m.releases(); got < min(tt.least, 2) || number != "" {
				t.Errorf("released %d times as connection %q when Open fails, want %d times without a number", got, number, min(tt.least, 2))
			}
			time.Sleep(2 * time.Minute)
			if got := m.releases(); got < tt.least || got > tt.most {
				t.Errorf("released %d times, want %d to %d", got, tt.least, tt.most)
			}
		})
	}
}

// A notice that arrives before the socket exists must not be checked with the
// state of a connection that is not attached yet.
func TestNoticeBeforeStartIsCheckedAfterStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, outcome: NotOwner}
		c, socket := openConnection(t, m, "")
		renewals := len(m.leases)
		c.Replaced("other")
		synctest.Wait()
		testkit.Equal(t, "renewed times before Start", len(m.leases)-renewals, 0)
		c.Start(socket)
		synctest.Wait()
		testkit.Equal(t, "closed with", socket.code, CloseReplaced)
	})
}
