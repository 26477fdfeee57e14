package faults

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/boot"
	"telapi/test/talk"
)

// said sends numbered messages and returns their cursors as the browser saw them.
func said(t *testing.T, b *talk.Browser, ch *callruntime.Channel, from, to int) (cursors []string) {
	t.Helper()
	for n := from; n <= to; n++ {
		talk.SendChat(t, ch, fmt.Sprintf(`{"n":%d}`, n))
		cursors = append(cursors, b.Expect(fmt.Sprintf(`{"n":%d}`, n)).StreamID)
	}
	return cursors
}

// goesOn sees that nothing else is on its way, and that both directions work.
func goesOn(t *testing.T, b *talk.Browser, ch *callruntime.Channel) {
	t.Helper()
	id := b.Chat("still here")
	b.Expect(`"event":"ack"`, id)
	for talk.Receive(t, ch).Message == nil { // connected and disconnected
	}
	talk.SendChat(t, ch, `{"text":"so am I"}`)
	b.Expect("so am I")
}

// future is a cursor of the same epoch that nothing was sent at yet.
func future(t *testing.T, cursor string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		t.Fatal(err)
	}
	epoch, _, _ := strings.Cut(string(raw), ".")
	return base64.RawURLEncoding.EncodeToString([]byte(epoch + ".4711-1893456000000"))
}

// A browser that comes back gets everything it missed or nothing, and is told which.
func TestResumeIsAllOrNothing(t *testing.T) {
	const history = 5
	backends(t, boot.Env{"SESSION_HISTORY_MESSAGES": fmt.Sprint(history)}, func(t *testing.T, p *place) {
		other, _, otherCh := p.conversation(t)
		foreign := said(t, other, otherCh, 1, 3)[2]

		id, token := p.session(t)
		b := talk.Connect(t, p.Instance, id, token, "")
		start := b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
		ch := talk.Accept(t, talk.StartRuntime(t, p.env))
		cursors := append([]string{start}, said(t, b, ch, 1, 4)...)

		type resumption struct {
			cursor    string
			recovered bool
			first     int // the number of the first message that is replayed
		}
		try := func(t *testing.T, newest int, r resumption) {
			t.Helper()
			b.Cut()
			b = talk.Connect(t, p.Instance, id, token, "?streamId="+r.cursor)
			ready := b.Expect(`"event":"ready"`, fmt.Sprintf(`"resumed":%v`, r.recovered))
			count := 0
			if r.recovered {
				for n := r.first; n <= newest; n++ {
					if m := b.Expect(fmt.Sprintf(`{"n":%d}`, n)); m.StreamID != cursors[n] {
						t.Errorf("message %d came with another cursor: %s", n, m.Raw)
					}
					count++
				}
			}
			b.Expect(`"type":"reconnect"`, fmt.Sprintf(`{"recovered":%v,"count":%d}`, r.recovered, count))
			if r.cursor == "start" {
				r.cursor = start
			}
			if r.recovered && ready.ReadyStreamID() != r.cursor || !r.recovered && ready.ReadyStreamID() != cursors[newest] {
				t.Errorf("ready says it starts at %s", ready.ReadyStreamID())
			}
			ack := b.Chat("nothing else comes")
			b.Expect(`"event":"ack"`, ack)
		}
		t.Run("before the first message", func(t *testing.T) { try(t, 4, resumption{start, true, 1}) })
		t.Run("lost before there was one", func(t *testing.T) { try(t, 4, resumption{"start", true, 1}) })
		t.Run("current", func(t *testing.T) { try(t, 4, resumption{cursors[4], true, 5}) })
		t.Run("old but kept", func(t *testing.T) { try(t, 4, resumption{cursors[2], true, 3}) })
		t.Run("from the future", func(t *testing.T) { try(t, 4, resumption{future(t, cursors[4]), false, 0}) })
		t.Run("of another session", func(t *testing.T) { try(t, 4, resumption{foreign, false, 0}) })
		for _, garbage := range []string{"x", "%00", "AAAA", "0-0", strings.Repeat("A", 4000), "Ky4xLTE", cursors[4] + "A"} {
			t.Run("garbage "+garbage[:1], func(t *testing.T) { try(t, 4, resumption{garbage, false, 0}) })
		}
		t.Run("none", func(t *testing.T) {
			b.Cut()
			b = talk.Connect(t, p.Instance, id, token, "")
			b.Expect(`"event":"ready"`, `"resumed":false`, cursors[4])
			cursors = append(cursors, said(t, b, ch, 5, 8)...)
		})
		t.Run("the newest that was trimmed", func(t *testing.T) { try(t, 8, resumption{cursors[8-history], true, 8 - history + 1}) })
		t.Run("lost before there was one, and trimmed", func(t *testing.T) { try(t, 8, resumption{"start", false, 0}) })
		t.Run("trimmed", func(t *testing.T) { try(t, 8, resumption{cursors[8-history-1], false, 0}) })
		t.Run("after a wipe", func(t *testing.T) {
			b.Cut()
			p.store(t, func(c rueidis.Client) rueidis.Completed { return c.B().Flushall().Build() })
			b = talk.Connect(t, p.Instance, id, token, "?streamId="+cursors[8])
			ready := b.Expect(`"event":"ready"`, `"resumed":false`).ReadyStreamID()
			b.Expect(`"type":"reconnect"`, `{"recovered":false,"count":0}`)
			goesOn(t, b, talk.Accept(t, talk.StartRuntime(t, p.env)))

			b.Cut()
			b = talk.Connect(t, p.Instance, id, token, "?streamId="+ready)
			b.Expect(`"event":"ready"`, `"resumed":true`)
			b.Expect("so am I")
			b.Expect(`{"recovered":true,"count":1}`)
		})
	})
}

// A live socket that did not hear of a message notices with the next one.
func TestSocketRecoversMissedNotice(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _, ch := p.conversation(t)
		said(t, b, ch, 1, 2)
		mute := strings.ReplaceAll(lua.Channel("send"), "redis.call('PUBLISH'", "tostring('PUBLISH'")
		for n := 3; n <= 5; n++ {
			id := uuid.NewString()
			p.store(t, func(c rueidis.Client) rueidis.Completed {
				keys := kv.ChannelKeys(b.Session)
				return c.B().Eval().Script(mute).Numkeys(int64(len(keys))).Key(keys...).Arg("", "-", "", "",
					fmt.Sprintf(`{"type":"chat","sessionId":%q,"messageId":%q,"timestamp":1,"direction":"to_browser","chat":{"n":%d}}`, b.Session, id, n)).Build()
			})
		}
		talk.SendChat(t, ch, `{"n":6}`)
		for n := 3; n <= 6; n++ {
			b.Expect(fmt.Sprintf(`{"n":%d}`, n))
		}
		goesOn(t, b, ch)
	})
}
