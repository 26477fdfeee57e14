package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/harness"
)

// echoRuntime answers every frame, and is cut at random moments.
type echoRuntime struct {
	*testing.T
	instance   *harness.Instance
	key, claim string
	channel    string
	seen       int64 // number of the newest entry
	texts      []string
}

// serve resumes the claim and handles entries until it has handled a number of them, or all
// that are not committed and as many new ones. Then it cuts the connection, with requests
// under way unless all is set.
func (r *echoRuntime) serve(limit int, all bool) {
	r.Helper()
	socket := connectRuntime(r.T, r.instance, r.key)
	defer socket.conn.NetConn().Close()
	welcome := socket.must("hello", fmt.Sprintf(`"name":"echo","resumeMs":60000,"resume":[{"channel":%q,"claim":%q}]`, r.channel, r.claim))
	resumed := welcome["resumed"].([]any)
	if len(resumed) != 1 {
		r.Fatalf("the claim is lost: %v", welcome)
	}
	last := int64(0)
	if all {
		limit += int(r.seen - wire.EntryNumber(resumed[0].(map[string]any)["position"].(string)))
	}
	for range limit {
		m := socket.next("entry", func(m map[string]any) bool { return m["event"] == "entry" })
		position := m["position"].(string)
		number := wire.EntryNumber(position)
		switch {
		case last > 0 && number != last+1:
			r.Fatalf("entry %d follows %d", number, last)
		case number > r.seen+1:
			r.Fatalf("entry %d, the newest before was %d: lost", number, r.seen)
		}
		last = number
		entry := m["entry"].(map[string]any)
		if message, ok := entry["message"].(map[string]any); ok {
			text := message["chat"].(map[string]any)["text"].(string)
			if number > r.seen {
				r.texts = append(r.texts, text)
			}
			id := uuid.NewSHA1(uuid.Nil, []byte(position)).String() // the same if the entry is handled again
			socket.send("send", fmt.Sprintf(`"channel":%q,"messages":[{"type":"chat","messageId":%q,"chat":{"text":%q}}]`, r.channel, id, text))
		}
		r.seen = max(r.seen, number)
		commit := socket.send("commit", fmt.Sprintf(`"channel":%q,"position":%q`, r.channel, position))
		if all {
			socket.ok(commit)
		}
	}
}

// Under 200 cuts of the runtime's connection, every frame reaches the runtime and every
// answer the browser, once and in order.
func TestNothingIsLostWhenRuntimeIsCut(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		i := harness.Start(t, harness.Merge(env, harness.Env{"SESSION_MAX_FRAMES_PER_SECOND": "10000"}))
		tenant := harness.NewTenant(t, i, "tenant")
		key := runtimeKey(t, i, tenant.Team.ID)
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
		first := greetedRuntime(t, i, key, `"name":"echo","resumeMs":60000`)
		claimed := first.must("accept", "")
		r := &echoRuntime{T: t, instance: i, key: key, claim: claimed["claim"].(string), channel: session}
		first.conn.NetConn().Close()

		const cuts = 200
		random := rand.New(rand.NewPCG(1, 2))
		frames := 0
		for range cuts {
			count := 1 + random.IntN(4)
			written := make(chan error, 1)
			go func() { // while the runtime connects
				var err error
				for range count {
					frame := harness.Frame("chat", session, uuid.NewString(), "chat", fmt.Sprintf(`{"text":"%d"}`, frames))
					err = errors.Join(err, b.Conn.WriteMessage(websocket.TextMessage, []byte(frame)))
					frames++
				}
				written <- err
			}()
			r.serve(count, false)
			if err := <-written; err != nil {
				t.Fatal(err)
			}
		}
		r.serve(frames+1-int(r.seen), true)
		for n, text := range r.texts {
			if text != fmt.Sprint(n) {
				t.Fatalf("frame %d is %s: lost, twice or out of order", n, text)
			}
		}
		if len(r.texts) != frames {
			t.Errorf("%d frames, want %d", len(r.texts), frames)
		}
		for answers := 0; answers < frames; {
			m := b.Next()
			if m.Type != wire.TypeChat {
				continue
			}
			var chat struct{ Text string }
			if err := json.Unmarshal(m.Chat, &chat); err != nil || chat.Text != fmt.Sprint(answers) {
				t.Fatalf("answer %d is %s: lost, twice or out of order", answers, m.Raw)
			}
			answers++
		}
	})
}
