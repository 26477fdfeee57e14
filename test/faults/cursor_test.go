package faults

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/internal/calls"
	"telapi/test/harness"
)

// sendNumbered sends numbered messages and returns the cursors that the browser
// received.
func sendNumbered(t *testing.T, b *harness.Browser, ch *calls.Channel, from, to int) (cursors []string) {
	t.Helper()
	for n := from; n <= to; n++ {
		harness.SendChat(t, ch, fmt.Sprintf(`{"n":%d}`, n))
		cursors = append(cursors, b.Expect(fmt.Sprintf(`{"n":%d}`, n)).StreamID)
	}
	return cursors
}

// checkConversation checks that both directions work and that no other frame is
// pending.
func checkConversation(t *testing.T, b *harness.Browser, ch *calls.Channel) {
	t.Helper()
	id := b.Chat("still here")
	b.Expect(`"event":"ack"`, id)
	for harness.Receive(t, ch).Message == nil { // skips connected and disconnected
	}
	harness.SendChat(t, ch, `{"text":"here too"}`)
	b.Expect("here too")
}

// futureCursor returns a cursor of the same epoch after the last message.
func futureCursor(t *testing.T, cursor string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	epoch, _, _ := strings.Cut(string(raw), ".")
	return base64.RawURLEncoding.EncodeToString([]byte(epoch + ".4711-1893456000000"))
}

// A reconnecting browser receives all missed messages or none, and the reconnect
// frame reports which.
func TestResumeIsAllOrNothing(t *testing.T) {
	const history = 5
	onEmbeddedAndReal(t, harness.Env{"SESSION_HISTORY_MESSAGES": fmt.Sprint(history)}, func(t *testing.T, svc *service) {
		other, _, otherCh := svc.conversation(t)
		cursorOfOther := sendNumbered(t, other, otherCh, 1, 3)[2]

		id, token := svc.session(t)
		b := harness.Connect(t, svc.Instance, id, token, "")
		start := b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
		ch := harness.Accept(t, harness.StartRuntime(t, svc.env))
		cursors := append([]string{start}, sendNumbered(t, b, ch, 1, 4)...)

		type resumption struct {
			cursor    string
			recovered bool
			first     int // number of the first replayed message
		}
		resume := func(t *testing.T, newest int, r resumption) {
			t.Helper()
			b.Cut()
			b = harness.Connect(t, svc.Instance, id, token, "?streamId="+r.cursor)
			ready := b.Expect(`"event":"ready"`, fmt.Sprintf(`"resumed":%v`, r.recovered))
			count := 0
			if r.recovered {
				for n := r.first; n <= newest; n++ {
					if m := b.Expect(fmt.Sprintf(`{"n":%d}`, n)); m.StreamID != cursors[n] {
						t.Errorf("replayed message %d is %s, want the cursor %s", n, m.Raw, cursors[n])
					}
					count++
				}
			}
			b.Expect(`"type":"reconnect"`, fmt.Sprintf(`{"recovered":%v,"count":%d}`, r.recovered, count))
			want := cursors[newest]
			switch {
			case r.recovered && r.cursor == "start":
				want = start
			case r.recovered:
				want = r.cursor
			}
			if got := ready.ReadyStreamID(); got != want {
				t.Errorf("cursor of the ready frame is %s, want %s", got, want)
			}
			ack := b.Chat("no other frame is pending")
			b.Expect(`"event":"ack"`, ack)
		}
		t.Run("before the first message", func(t *testing.T) { resume(t, 4, resumption{start, true, 1}) })
		t.Run("start", func(t *testing.T) { resume(t, 4, resumption{"start", true, 1}) })
		t.Run("current", func(t *testing.T) { resume(t, 4, resumption{cursors[4], true, 5}) })
		t.Run("old", func(t *testing.T) { resume(t, 4, resumption{cursors[2], true, 3}) })
		t.Run("future", func(t *testing.T) { resume(t, 4, resumption{futureCursor(t, cursors[4]), false, 0}) })
		t.Run("other session", func(t *testing.T) { resume(t, 4, resumption{cursorOfOther, false, 0}) })
		for _, garbage := range []string{"x", "%00", "AAAA", "0-0", strings.Repeat("A", 4000), "Ky4xLTE", cursors[4] + "A"} {
			t.Run("garbage "+garbage[:1], func(t *testing.T) { resume(t, 4, resumption{garbage, false, 0}) })
		}
		t.Run("no cursor", func(t *testing.T) {
			b.Cut()
			b = harness.Connect(t, svc.Instance, id, token, "")
			b.Expect(`"event":"ready"`, `"resumed":false`, cursors[4])
			cursors = append(cursors, sendNumbered(t, b, ch, 5, 8)...)
		})
		t.Run("newest trimmed message", func(t *testing.T) { resume(t, 8, resumption{cursors[8-history], true, 8 - history + 1}) })
		t.Run("start of trimmed history", func(t *testing.T) { resume(t, 8, resumption{"start", false, 0}) })
		t.Run("older trimmed message", func(t *testing.T) { resume(t, 8, resumption{cursors[8-history-1], false, 0}) })
		t.Run("after a flush", func(t *testing.T) {
			b.Cut()
			svc.store(t, func(c rueidis.Client) rueidis.Completed { return c.B().Flushall().Build() })
			b = harness.Connect(t, svc.Instance, id, token, "?streamId="+cursors[8])
			ready := b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
			b.Expect(`"type":"reconnect"`, `{"recovered":false,"count":0}`)
			checkConversation(t, b, harness.Accept(t, harness.StartRuntime(t, svc.env)))

			b.Cut()
			b = harness.Connect(t, svc.Instance, id, token, "?streamId="+ready)
			b.Expect(`"event":"ready"`, `"resumed":true`)
			b.Expect("here too")
			b.Expect(`{"recovered":true,"count":1}`)
		})
	})
}
