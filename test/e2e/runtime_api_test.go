package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/test/contract"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// runtimeSocket is a call runtime that has nothing but a WebSocket.
type runtimeSocket struct {
	t    *testing.T
	conn *websocket.Conn
	id   int
	kept []map[string]any // frames that a caller did not wait for
}

func dialRuntime(t *testing.T, i *harness.Instance, header ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{}
	for _, pair := range header {
		name, value, _ := strings.Cut(pair, ": ")
		h.Set(name, value)
	}
	dialer := websocket.Dialer{Subprotocols: []string{wire.RuntimeProtocol}}
	return dialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(i.URL, "http")+wire.RuntimePath, h)
}

// connectRuntime opens a connection with a key in the header.
func connectRuntime(t *testing.T, i *harness.Instance, key string) *runtimeSocket {
	t.Helper()
	conn, resp, err := dialRuntime(t, i, "X-API-Key: "+key)
	if err != nil {
		t.Fatalf("dial: %v, %s", err, harness.Body(resp))
	}
	t.Cleanup(func() { conn.Close() })
	return &runtimeSocket{t: t, conn: conn}
}

// greetedRuntime opens a connection and says hello.
func greetedRuntime(t *testing.T, i *harness.Instance, key string, hello string) *runtimeSocket {
	t.Helper()
	r := connectRuntime(t, i, key)
	r.must("hello", hello)
	return r
}

// send sends a request with further members and returns its ID.
func (r *runtimeSocket) send(op, members string) int {
	r.t.Helper()
	r.id++
	if members != "" {
		members = "," + members
	}
	r.write(fmt.Sprintf(`{"id":%d,"op":%q%s}`, r.id, op, members))
	return r.id
}

func (r *runtimeSocket) write(frame string) {
	r.t.Helper()
	testkit.Must(r.t, r.conn.WriteMessage(websocket.TextMessage, []byte(frame)))
}

func (r *runtimeSocket) read() (map[string]any, error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, frame, err := r.conn.ReadMessage()
	if err != nil {
		return nil, err
	}
	if err := contract.CheckRuntimeFrame(frame); err != nil {
		r.t.Errorf("%s: %v", frame, err)
	}
	var m map[string]any
	if err := json.Unmarshal(frame, &m); err != nil {
		r.t.Fatalf("%s: %v", frame, err)
	}
	return m, nil
}

// next returns the first frame, kept or new, for which want returns true.
func (r *runtimeSocket) next(what string, want func(map[string]any) bool) map[string]any {
	r.t.Helper()
	for i, m := range r.kept {
		if want(m) {
			r.kept = append(r.kept[:i:i], r.kept[i+1:]...)
			return m
		}
	}
	for {
		m, err := r.read()
		if err != nil {
			r.t.Fatalf("waiting for %s: %v; got %v", what, err, r.kept)
		}
		if want(m) {
			return m
		}
		r.kept = append(r.kept, m)
	}
}

// reply returns the reply to a request.
func (r *runtimeSocket) reply(id int) map[string]any {
	r.t.Helper()
	return r.next(fmt.Sprint("reply ", id), func(m map[string]any) bool { return m["event"] == nil && m["id"] == float64(id) })
}

// must sends a request and returns the content of its reply.
func (r *runtimeSocket) must(op, members string) map[string]any {
	r.t.Helper()
	return r.ok(r.send(op, members))
}

func (r *runtimeSocket) ok(id int) map[string]any {
	r.t.Helper()
	m := r.reply(id)
	ok, _ := m["ok"].(map[string]any)
	if ok == nil {
		r.t.Fatalf("request failed: %v", m)
	}
	return ok
}

// rejected sends a request and returns the code of its error.
func (r *runtimeSocket) rejected(op, members string) string {
	r.t.Helper()
	m := r.reply(r.send(op, members))
	e, _ := m["error"].(map[string]any)
	if e == nil || e["message"] == "" {
		r.t.Fatalf("%s %s succeeded: %v", op, members, m)
	}
	return e["code"].(string)
}

// push returns the next push of an event.
func (r *runtimeSocket) push(event string) map[string]any {
	r.t.Helper()
	return r.next(event, func(m map[string]any) bool { return m["event"] == event })
}

// entry returns the next entry and its position.
func (r *runtimeSocket) entry() (entry map[string]any, position string) {
	r.t.Helper()
	m := r.push("entry")
	return m["entry"].(map[string]any), m["position"].(string)
}

// closeCode reads until the connection is closed.
func (r *runtimeSocket) closeCode() int {
	r.t.Helper()
	for {
		m, err := r.read()
		if err == nil {
			r.kept = append(r.kept, m)
			continue
		}
		if closed, ok := err.(*websocket.CloseError); ok { //nolint:errorlint // as the library returns it
			return closed.Code
		}
		r.t.Fatalf("connection ended: %v", err)
	}
}

func runtimeKey(t *testing.T, i *harness.Instance, team string) string {
	t.Helper()
	_, key := harness.NewKey(t, i, team, auth.RunCalls)
	return key
}

// A session from token to end, with all that a runtime can do.
func TestRuntimeRunsSession(t *testing.T) {
	t.Parallel()
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i, tenant := startTenant(t, env)
		r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"test"`)
		accept := r.send("accept", "")
		session, token := tenant.Session(t, i, "metadata", map[string]any{"order": 4711})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`, `"textChat":true`, `"maxMessageBytes":65536`)
		claimed := r.ok(accept)
		if claimed["channel"] != session || len(claimed["claim"].(string)) < 26 || claimed["team"] != tenant.Team.ID || claimed["position"] != "" {
			t.Errorf("claimed %v", claimed)
		}
		channel := fmt.Sprintf(`"channel":%q`, session)
		if e, _ := r.entry(); e["event"] != "connected" {
			t.Errorf("entry %v, want connected", e)
		}
		b.Expect(`"event":"ack"`, b.Chat("hi"))
		e, position := r.entry()
		if e["kind"] != "frame" {
			t.Errorf("entry %v, want the frame", e)
		}
		r.must("commit", channel+fmt.Sprintf(`,"position":%q`, position))
		sent := r.must("send", channel+`,"messages":[{"type":"chat","chat":{"text":"one"}},{"type":"chat","messageId":"00000000-0000-4000-8000-000000000002","chat":{"text":"two"}}]`)
		if ids := sent["messageIds"].([]any); len(ids) != 2 || ids[0] == "" || ids[1] != "00000000-0000-4000-8000-000000000002" {
			t.Errorf("sent %v", sent)
		}
		if m := b.Expect(`"type":"chat"`, `"one"`, `"direction":"to_browser"`, session); m.StreamID == "" || m.MessageID == "" || m.Timestamp == 0 {
			t.Errorf("frame %s, want streamId, messageId and timestamp", m.Raw)
		}
		b.Expect(`"two"`)
		awaited := r.must("await", channel+`,"workItemId":"w1","kind":"tool","ttlMs":60000`)
		again := r.must("await", channel+`,"workItemId":"w1","kind":"tool","ttlMs":60000`)
		if fmt.Sprint(awaited) != fmt.Sprint(again) {
			t.Errorf("awaited %v, then %v", awaited, again)
		}
		resp, body := i.Post(t, strings.TrimPrefix(awaited["url"].(string), i.URL), `{"result":{"a":1}}`, "token", awaited["token"].(string))
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("callback: %s", body)
		}
		if e, _ := r.entry(); e["kind"] != "tool_result" || e["workItemId"] != "w1" {
			t.Errorf("entry %v, want the result", e)
		}
		r.must("await", channel+`,"workItemId":"w2"`)
		r.must("cancel", channel+`,"workItemId":"w2"`)
		r.must("end", channel+`,"reason":"done"`)
		e, position = r.entry()
		if e["kind"] != "channel_ended" || e["reason"] != "done" {
			t.Errorf("entry %v, want the end", e)
		}
		testkit.Equal(t, "close code of the browser", b.CloseCode(), 4503)
		testkit.Until(t, "the session is ended", func() bool { return sessionState(t, i, tenant, session) == "ended" })
		testkit.Equal(t, "send to an ended channel", r.rejected("send", channel+`,"messages":[{"type":"chat","chat":{"text":"late"}}]`), "CONVERSATION_ENDED")
		r.must("commit", channel+fmt.Sprintf(`,"position":%q`, position))
		testkit.Equal(t, "release of an ended channel", r.rejected("release", channel), "NOT_FOUND")
	})
}

// Entries that were not committed arrive again after a reconnect, and nothing else.
// A chat frame arrives with a work item, so that the runtime need not await one.
func TestChatFrameArrivesWithWorkItem(t *testing.T) {
	t.Parallel()
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i, tenant := startTenant(t, env)
		r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"test"`)
		accept := r.send("accept", `"awaitChat":{"kind":"llm"}`)
		session, token := tenant.Session(t, i)
		b := harness.Connect(t, i, session, token, "")
		r.ok(accept)
		if push := r.push("entry"); push["workItem"] != nil {
			t.Errorf("%v has a work item, want a chat frame only", push)
		}
		id := b.Chat("hi")
		push := r.push("entry")
		item, _ := push["workItem"].(map[string]any)
		if entry := push["entry"].(map[string]any); item["workItemId"] != id || entry["kind"] != "frame" || entry["item"] != nil {
			t.Fatalf("pushed %v, want the frame with a work item", push)
		}
		again := r.must("await", fmt.Sprintf(`"channel":%q,"workItemId":%q,"kind":"llm"`, session, id))
		if again["token"] != item["token"] || again["deadline"] != item["deadline"] || until(item["deadline"]).Round(time.Minute) != 5*time.Minute {
			t.Errorf("pushed %v, awaited %v", item, again)
		}
		resp, body := i.Post(t, strings.TrimPrefix(item["url"].(string), i.URL), `{"content":"hello"}`, "token", item["token"].(string))
		testkit.Equal(t, "callback: "+body, resp.StatusCode, http.StatusAccepted)
		if e, _ := r.entry(); e["kind"] != "llm_result" || e["workItemId"] != id {
			t.Errorf("entry %v, want the result", e)
		}
	})
}

// until returns the time until a time in Unix ms.
func until(ms any) time.Duration { return time.Until(time.UnixMilli(int64(ms.(float64)))) }

func TestRuntimeResumesOnAnotherConnection(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		i, tenant := startTenant(t, env)
		key := runtimeKey(t, i, tenant.Team.ID)
		first := greetedRuntime(t, i, key, `"name":"test"`)
		open := fmt.Sprintf(`"channel":"call-1","endpoint":%q,"callId":"c1"`, tenant.Endpoint.ID)
		claimed := first.must("open", open)
		first.must("open", fmt.Sprintf(`"channel":"call-2","endpoint":%q`, tenant.Endpoint.ID))
		channel := `"channel":"call-1"`
		first.must("await", channel+`,"workItemId":"w1","ttlMs":1`)
		first.must("await", channel+`,"workItemId":"w2","ttlMs":1`)
		if e, position := first.entry(); e["workItemId"] != "w1" {
			t.Fatalf("entry %v", e)
		} else {
			first.must("commit", channel+fmt.Sprintf(`,"position":%q`, position))
		}
		_, received := first.entry()

		// A second connection with the claim takes it from the first.
		hello := fmt.Sprintf(`"name":"test","resume":[{"channel":"call-1","claim":%q,"received":%q},{"channel":"other","claim":"x"},{"channel":"call-2","claim":"wrong"}]`, claimed["claim"], received)
		second := connectRuntime(t, i, key)
		welcome := second.must("hello", hello)
		if resumed := welcome["resumed"].([]any); len(resumed) != 1 || resumed[0].(map[string]any)["channel"] != "call-1" {
			t.Fatalf("welcome %v", welcome)
		}
		if lost := first.push("claim_lost"); lost["channel"] != "call-1" || lost["claim"] != claimed["claim"] {
			t.Errorf("claim_lost %v", lost)
		}
		testkit.Equal(t, "end without claim", first.rejected("end", channel), "NOT_FOUND")
		e, position := second.entry()
		if e["workItemId"] != "w2" || position != received {
			t.Errorf("entry %v at %s, want w2 at %s", e, position, received)
		}
		second.must("commit", channel+fmt.Sprintf(`,"position":%q`, position))

		// Opened again by the same runtime, the channel has the same claim.
		if again := second.must("open", open); again["claim"] != claimed["claim"] || again["position"] != position {
			t.Errorf("opened again: %v", again)
		}
		other := greetedRuntime(t, i, key, `"name":"other"`)
		testkit.Equal(t, "open by another runtime", other.rejected("open", open), "SESSION_IN_USE")
		second.must("release", channel)
		other.must("open", open)
	})
}

// A runtime that missed the reply to its accept gets the session again when it comes back,
// and keeps the claims that it knows of.
func TestClaimOfLostReplyIsReleased(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		i, tenant := startTenant(t, env)
		key := runtimeKey(t, i, tenant.Team.ID)
		first := connectRuntime(t, i, key)
		welcome := first.must("hello", `"name":"r","resumeMs":60000`)
		phone := first.must("open", fmt.Sprintf(`"channel":"phone","endpoint":%q`, tenant.Endpoint.ID))
		session, _ := openSession(t, i, tenant)
		first.must("accept", "")
		first.conn.Close()
		second := connectRuntime(t, i, key)
		welcome = second.must("hello", fmt.Sprintf(`"name":"r","previous":%q,"resume":[{"channel":"phone","claim":%q}]`, welcome["connection"], phone["claim"]))
		if resumed := welcome["resumed"].([]any); len(resumed) != 1 {
			t.Errorf("resumed %v", resumed)
		}
		if claimed := second.must("accept", ""); claimed["channel"] != session {
			t.Errorf("claimed %v", claimed)
		}
		second.must("end", `"channel":"phone"`)
	})
}
