package channel

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
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
		if got := w.numbers(); got != "1 2 3 4 5 6 7" {
			t.Errorf("the browser got %s", got)
		}
		if !strings.Contains(w.frames[0], `"event":"ready"`) || !strings.Contains(w.frames[1], `"streamId":"`+at(1).String()) {
			t.Errorf("frames are %q", w.frames[:2])
		}
		if m.offered != 1 {
			t.Errorf("offered %d times", m.offered)
		}
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
	if w.code != CloseSlowReader {
		t.Errorf("closed with %d", w.code)
	}
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
				if w.code != want {
					t.Errorf("%s, before Start: %t: closed with %d, want %d", outcome, early, w.code, want)
				}
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
				if socket.code != want {
					t.Errorf("%s, after %s: closed with %d", name, when, socket.code)
				}
			})
		}
	}
}
