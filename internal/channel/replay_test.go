package channel

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestConnectionStartsWithMissedMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		number, resume string
		ready          Cursor // in the ready frame
		messages       string // of 3 in the history
		outcome        string // of the recovery
	}{
		"resumes after the first": {"2", at(1).String(), at(1), "2 3", "recovered"},
		"resumes after the last":  {"2", at(3).String(), at(3), "", "recovered"},
		"resumes from the start":  {"2", Start, at(0), "1 2 3", "recovered"},
		"cursor of another epoch": {"2", Cursor{"other", "1-1"}.String(), at(3), "", "failed"},
		"invalid cursor":          {"2", "invalid", at(3), "", "failed"},
		"no cursor":               {"2", "", at(3), "", ""},
		"first connection":        {"1", "", at(0), "1 2 3", ""},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			m := &memory{complete: true, number: tt.number}
			for n := range 3 {
				m.send(n + 1)
			}
			c, w := openConnection(t, m, tt.resume)
			c.Start(w)
			synctest.Wait()
			recovered := tt.outcome == "recovered"
			testkit.Contains(t, "ready frame", w.frames[0], fmt.Sprintf(`"streamId":%q,"resumed":%t`, tt.ready.String(), recovered))
			testkit.Equal(t, "messages", w.numbers(), tt.messages)
			var want []string
			if tt.outcome != "" {
				want = []string{fmt.Sprintf(`"reconnect":{"recovered":%t,"count":%d}`, recovered, len(strings.Fields(tt.messages)))}
			}
			testkit.Equal(t, "reconnect frames", regexp.MustCompile(`"reconnect":{[^}]*}`).FindAllString(strings.Join(w.frames, ""), -1), want)
			testkit.Equal(t, "recoveries", recoveries(t, c), tt.outcome)
			if (m.request.Resume != nil) != (tt.resume != "") || len(m.request.Entry) == 0 || len(m.request.Offer) == 0 || m.reads > 0 {
				t.Errorf("attached with %+v, then read the history %d times", m.request, m.reads)
			}
		})
	}
}

// recoveries returns the outcomes of the recoveries that were counted.
func recoveries(t *testing.T, c *Connection) string {
	t.Helper()
	var list []string
	for _, outcome := range []string{"failed", "recovered"} {
		n := testkit.MetricValue(t, c.service.metrics.recoveries.WithLabelValues(outcome))
		list = append(list, slices.Repeat([]string{outcome}, int(n))...)
	}
	return strings.Join(list, " ")
}

// A long replay continues when the client has received what was queued. However many notices arrive
// meanwhile, the history is read once more after it.
func TestReplayContinuesAfterWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{complete: true, page: 3}
		for n := range 7 {
			m.send(n + 1)
		}
		c, w := openConnection(t, m, at(1).String())
		c.service.limits.QueuedBytes = 4 * 60 // a replay may fill a quarter: two messages of 30 bytes
		w.slow = true
		c.Start(w)
		for _, want := range []string{"2 3, 0 reads", "2 3 4, 0 reads", "2 3 4 5 6, 1 reads", "2 3 4 5 6 7, 1 reads"} {
			testkit.Equal(t, "the browser", fmt.Sprintf("%s, %d reads", w.numbers(), m.reads), want)
			m.subscriber.Gap()
			synctest.Wait()
			w.then()
			synctest.Wait()
		}
		testkit.Equal(t, "reads at the end", m.reads, 3)
		testkit.Equal(t, "replayed", testkit.MetricValue(t, c.service.metrics.replayed), 6)
		testkit.Equal(t, "recoveries", recoveries(t, c), "recovered")
		testkit.Contains(t, "last frame", w.frames[len(w.frames)-1], `"recovered":true,"count":6`)
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
			testkit.Equal(t, "recoveries", recoveries(t, c), map[CloseCode]string{CloseHistoryLost: "failed"}[want])
		})
	}
}
