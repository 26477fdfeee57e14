package channel

import (
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
	"telapi/test/testkit"
)

func TestMessagesArriveOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true}
		c, w := openConnection(t, m, "")
		m.subscriber.Messages(m.send(1)) // before Start
		c.Start(w)
		reads := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			testkit.Equal(t, "reads of the history after "+what, m.reads, want)
			m.reads = 0
		}
		reads("Start", 2) // the second finds that there are no more messages
		m.subscriber.Messages(m.send(2))
		reads("a message", 0)
		m.send(3) // not announced
		m.subscriber.Messages(m.send(4))
		reads("a gap", 2)
		m.subscriber.Messages(at(1), m.history[1:2])
		reads("an old message", 1)
		m.send(5)
		m.subscriber.Messages(at(3), m.history[3:])
		m.send(6)
		m.subscriber.Messages(at(3), m.history[3:])
		m.subscriber.Messages(at(5), m.history[5:])
		reads("partly repeated messages", 0)
		m.send(7)
		m.subscriber.Gap()
		reads("an interruption", 2)
		testkit.Equal(t, "messages of the browser", w.numbers(), "1 2 3 4 5 6 7")
		testkit.Equal(t, "recoveries", recoveries(t, c), "recovered recovered recovered") // of 1, 3 and 7
		if !strings.Contains(w.frames[0], `"event":"ready"`) || !strings.Contains(w.frames[1], `"streamId":"`+at(1).String()) {
			t.Errorf("frames are %q", w.frames[:2])
		}
		testkit.Equal(t, "offers", m.offered, 1)
	})
}

func TestSlowReaderIsClosed(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	w.full = true
	m.subscriber.Messages(m.send(1))
	testkit.Equal(t, "close code", w.code, CloseSlowReader)
}

// What a heartbeat or the check of a notice finds before Start closes the socket after it.
func TestConnectionThatLostSessionIsClosed(t *testing.T) {
	for outcome, want := range map[Outcome]CloseCode{Owned: 0, NotOwner: CloseReplaced, Expired: CloseStoreUnavailable, Ended: CloseEnded, Lost: CloseHistoryLost} {
		for name, check := range map[string]func(*Connection){
			"notice":    func(c *Connection) { c.Replaced("another") },
			"heartbeat": func(c *Connection) { c.Heartbeat(t.Context()) },
		} {
			for _, early := range []bool{true, false} {
				testkit.RunBubble(t, fmt.Sprintf("%s/%s/before Start %t", outcome, name, early), func(t *testing.T) {
					m := &memory{outcome: outcome, complete: true}
					c, w := openConnection(t, m, "")
					m.send(1) // not announced
					if early {
						check(c)
					} else {
						c.Start(w)
						c.Replaced(c.id)
					}
					synctest.Wait()
					if name == "notice" && len(m.leases) != 1 {
						t.Error("renewed before Start, or after a notice that the connection caused itself")
					}
					if early {
						c.Start(w)
					} else {
						check(c)
					}
					synctest.Wait()
					testkit.Equal(t, "close code", w.code, want)
					testkit.Equal(t, "got the message", w.numbers() == "1", want == 0)
					testkit.Equal(t, "leases", slices.Compact(m.leases), []time.Duration{2 * time.Second})
				})
			}
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
				m := &memory{outcome: Ended}
				c, socket := openConnection(t, m, "")
				c.Start(socket)
				time.Sleep(when)
				notice(c)
				synctest.Wait()
				testkit.Equal(t, name+": recorded", len(m.ended) == 1, name == "closed notice")
				testkit.Equal(t, name+": renewed", len(m.leases) > 1, name == "heartbeat" && want == CloseEnded)
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
		c.Heartbeat(t.Context())
		synctest.Wait()
		testkit.Equal(t, "reads of the history, which has no other message", m.reads, 0)
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
	for outage, tt := range map[time.Duration]struct {
		least, most int // renewals, which get rarer
		messages    string
	}{
		time.Millisecond: {2, 2, "1"},
		time.Minute:      {4, 20, ""}, // longer than storeTimeout; the next heartbeat finds the message
	} {
		testkit.RunBubble(t, outage.String(), func(t *testing.T) {
			m := &memory{complete: true, outcome: Owned, err: errors.New("reply lost"), renewTime: time.Microsecond}
			c, socket := openConnection(t, m, "")
			c.Start(socket)
			m.leases = nil
			m.send(1) // not announced
			m.subscriber.Replaced("")
			synctest.Wait()
			m.subscriber.Replaced("") // the next renewal is an answer to it, too
			time.Sleep(outage)
			m.mu.Lock()
			m.err = nil
			m.mu.Unlock()
			time.Sleep(time.Minute)
			synctest.Wait()
			testkit.Equal(t, "the browser", socket.numbers(), tt.messages)
			if n := len(m.leases); n < tt.least || n > tt.most {
				t.Errorf("renewed %d times, want %d to %d", n, tt.least, tt.most)
			}
		})
	}
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
	unavailable := func(cause error) error { return fault.Unavailable("The key-value store", cause) }
	for name, tt := range map[string]struct {
		err, detachErr error
		took           time.Duration // by Open
		least, most    int           // calls that release something
		ended          []string      // sessions whose end is recorded
	}{
		"reply lost":        {err: unavailable(errors.New("reply lost")), least: 2, most: 2}, // unsubscribed and detached
		"store unavailable": {err: unavailable(errors.New("reply lost")), detachErr: errors.New("unavailable"), took: attachTimeout, least: 30 + detachAttempts, most: 35 + detachAttempts},
		"not sent":          {err: unavailable(ErrNotSent), least: 1, most: 1},
		"session in use":    {err: fault.New(fault.SessionInUse, "In use."), least: 1, most: 1},
		"session ended":     {err: fault.New(fault.SessionEnded, "Ended."), least: 1, most: 1, ended: []string{sessionID}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{attachErr: tt.err, detachErr: tt.detachErr}
			s := NewService(m, m, DefaultConnectionLimits(), "", slog.New(slog.DiscardHandler), nil)
			defer s.Close()
			since := time.Now()
			_, err := s.Open(t.Context(), SessionInfo{Offer: wire.Offer{SessionID: sessionID}, ExpiresAt: time.Now().Add(time.Hour)}, "", "")
			if took := time.Since(since); !errors.Is(err, tt.err) || took != tt.took {
				t.Fatalf("open: %v after %v, want %v after %v", err, took, tt.err, tt.took)
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
			testkit.Equal(t, "ended sessions", m.ended, tt.ended)
		})
	}
}

func TestTypeOfMessage(t *testing.T) {
	for message, want := range map[string]wire.MessageType{
		`{"type":"chat","chat":{}}`: wire.TypeChat, `{"type":"shout"}`: "other", `{"chat":{},"type":"chat"}`: "other", `{}`: "other",
	} {
		testkit.Equal(t, message, typeOf([]byte(message)), want)
	}
}
