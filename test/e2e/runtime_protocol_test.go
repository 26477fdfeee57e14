package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/kv"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// TestRuntimeRequestsAreChecked sends what a correct runtime never sends, on one
// connection.
func TestRuntimeRequestsAreChecked(t *testing.T) {
	t.Parallel()
	i := harness.Start(t, harness.Env{})
	tenant, other := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "other")
	r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"test"`)
	channel := `"channel":"call-1"`
	r.must("open", channel+fmt.Sprintf(`,"endpoint":%q`, tenant.Endpoint.ID))
	foreign := greetedRuntime(t, i, runtimeKey(t, i, other.Team.ID), `"name":"test"`)
	foreign.must("open", fmt.Sprintf(`"channel":"foreign","endpoint":%q`, other.Endpoint.ID))
	foreign.must("open", fmt.Sprintf(`"channel":"over","endpoint":%q`, other.Endpoint.ID))
	foreign.must("end", `"channel":"over"`)
	message := `{"type":"chat","chat":{"text":"x"}}`
	for _, row := range []struct{ op, members, code string }{
		{"hello", `"name":"test"`, "VALIDATION_ERROR"},
		{"dance", "", "VALIDATION_ERROR"},
		{"accept", `"endpoint":"x"`, "VALIDATION_ERROR"},
		{"accept", `"modes":"chat"`, "VALIDATION_ERROR"},
		{"accept", `"modes":["chat","fax"]`, "VALIDATION_ERROR"},
		{"accept", `"endpoints":["` + strings.Repeat("x", 129) + `"]`, "VALIDATION_ERROR"},
		{"accept", `"endpoints":["x"` + strings.Repeat(`,"x"`, 100) + `]`, "VALIDATION_ERROR"},
		{"accept", `"awaitChat":{"kind":"cat"}`, "VALIDATION_ERROR"},
		{"accept", `"awaitChat":{"ttlMs":0}`, "VALIDATION_ERROR"},
		{"accept", `"awaitChat":{"ttlMs":86400001}`, "VALIDATION_ERROR"},
		{"accept", `"awaitChat":{"scope":"item"}`, "VALIDATION_ERROR"},
		{"accept", `"awaitChat":true`, "VALIDATION_ERROR"},
		{"open", channel, "VALIDATION_ERROR"},
		{"open", channel + fmt.Sprintf(`,"endpoint":%q`, other.Endpoint.ID), "NOT_FOUND"},
		{"open", channel + fmt.Sprintf(`,"endpoint":%q,"team":%q`, other.Endpoint.ID, other.Team.ID), "NOT_FOUND"},
		{"open", `"channel":"foreign",` + fmt.Sprintf(`"endpoint":%q`, other.Endpoint.ID), "NOT_FOUND"},
		{"open", `"channel":"over",` + fmt.Sprintf(`"endpoint":%q`, tenant.Endpoint.ID), "NOT_FOUND"},
		{"open", `"channel":"a}b","endpoint":"x"`, "VALIDATION_ERROR"},
		{"open", `"channel":"ses_1",` + fmt.Sprintf(`"endpoint":%q`, tenant.Endpoint.ID), "VALIDATION_ERROR"},
		{"open", `"channel":"call-2","endpoint":"x","profile":[]`, "VALIDATION_ERROR"},
		{"commit", channel, "VALIDATION_ERROR"},
		{"commit", channel + `,"position":"7-1"`, "VALIDATION_ERROR"},
		{"commit", `"channel":"foreign","position":"1-1"`, "NOT_FOUND"},
		{"commit", channel + `,"claim":"former","position":"1-1"`, "NOT_FOUND"},
		{"send", channel + `,"messages":[]`, "VALIDATION_ERROR"},
		{"send", channel + `,"messages":[` + strings.Repeat(message+",", 64) + message + `]`, "VALIDATION_ERROR"},
		{"send", channel + `,"messages":[{"type":"audio","audio":{}}]`, "VALIDATION_ERROR"},
		{"send", channel + `,"messages":[{"type":"chat"}]`, "VALIDATION_ERROR"},
		{"send", channel + `,"messages":[{"type":"chat","messageId":"m-1","chat":{}}]`, "VALIDATION_ERROR"},
		{"send", channel + `,"messages":[` + message + `,{"type":"chat","chat":{"text":"` + strings.Repeat("x", 64<<10) + `"}}]`, "PAYLOAD_TOO_LARGE"},
		{"send", `"channel":"foreign","messages":[` + message + `]`, "NOT_FOUND"},
		{"send", `"channel":"missing","messages":[` + message + `]`, "NOT_FOUND"},
		{"await", channel + `,"ttlMs":86400001`, "VALIDATION_ERROR"},
		{"await", channel + `,"ttlMs":0`, "VALIDATION_ERROR"},
		{"await", channel + `,"kind":"cat"`, "VALIDATION_ERROR"},
		{"await", channel + `,"scope":"team"`, "VALIDATION_ERROR"},
		{"await", channel + `,"workItemId":"a b"`, "VALIDATION_ERROR"},
		{"await", `"channel":"foreign"`, "NOT_FOUND"},
		{"await", channel + `,"claim":"former"`, "NOT_FOUND"},
		{"send", channel + `,"claim":"former","messages":[` + message + `]`, "NOT_FOUND"},
		{"cancel", channel + `,"claim":"former","workItemId":"w"`, "NOT_FOUND"},
		{"end", channel + `,"claim":"former"`, "NOT_FOUND"},
		{"cancel", channel + `,"workItemId":"unknown"`, "NOT_FOUND"},
		{"cancel", channel, "VALIDATION_ERROR"},
		{"end", channel + `,"reason":"` + strings.Repeat("x", 201) + `"`, "VALIDATION_ERROR"},
		{"end", `"channel":"foreign"`, "NOT_FOUND"},
		{"release", `"channel":"foreign"`, "NOT_FOUND"},
		{"release", channel + `,"claim":"former"`, "NOT_FOUND"},
		{"report", `"reports":[{"id":"x","characters":0}]`, "VALIDATION_ERROR"},
		{"report", fmt.Sprintf(`"reports":[{"id":%q,"characters":10000001}]`, uuid.NewString()), "VALIDATION_ERROR"},
		{"report", fmt.Sprintf(`"reports":[{"id":%q,"characters":1,"at":9999999999999}]`, uuid.NewString()), "VALIDATION_ERROR"},
		{"report", fmt.Sprintf(`"reports":[{"id":%q,"characters":1,"voice":"\u0000"}]`, uuid.NewString()), "VALIDATION_ERROR"},
		{"report", fmt.Sprintf(`"reports":[{"id":%q,"characters":1,"teamId":%q}]`, uuid.NewString(), other.Team.ID), "NOT_FOUND"},
	} {
		testkit.Equal(t, fmt.Sprintf("%s %.80s", row.op, row.members), r.rejected(row.op, row.members), row.code)
		r.must("report", fmt.Sprintf(`"reports":[{"id":%q,"characters":1}]`, uuid.NewString())) // a good request in between
	}
	r.must("await", channel+`,"workItemId":"w","kind":"tool"`)
	testkit.Equal(t, "await with another kind", r.rejected("await", channel+`,"workItemId":"w","kind":"llm"`), "IDEMPOTENCY_CONFLICT")
	for _, frame := range []string{`{`, `[]`, `{"op":"accept"}`, `{"id":0,"op":"accept"}`, `{"id":1.5,"op":"accept"}`, `{"id":9007199254740992,"op":"accept"}`, `{"id":"1","op":"accept"}`, `{"op":"audio","channel":"call-1"}`, `{"op":"audio","channel":"call-1","message":{"type":"audio","audio":5}}`} {
		r.write(frame)
		if m := r.reply(0); m["error"] == nil || strings.Contains(fmt.Sprint(m), "INTERNAL_ERROR") {
			t.Errorf("%s: %v, want an error of the runtime with ID 0", frame, m)
		}
	}
	r.write(`x`)
	testkit.Equal(t, "close code", r.closeCode(), 4501)
	foreign.write(`{"id":1,"op":"accept","x":"` + strings.Repeat("x", 1<<20) + `"}`)
	testkit.Equal(t, "close code", foreign.closeCode(), 1009)
}

func TestRuntimeHandshakes(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	key := runtimeKey(t, i, tenant.Team.ID)
	_, weak := harness.NewKey(t, i, tenant.Team.ID, auth.ReadTeamApps)
	for name, c := range map[string]struct {
		headers []string
		status  int
		code    string
	}{
		"wrong key":     {[]string{"X-API-Key: tk_x_y"}, 401, "UNAUTHORIZED"},
		"missing scope": {[]string{"X-API-Key: " + weak}, 403, "FORBIDDEN"},
		"wrong JWT":     {[]string{"Authorization: Bearer x"}, 401, "UNAUTHORIZED"},
	} {
		conn, resp, err := dialRuntime(t, i, c.headers...)
		if err == nil {
			conn.Close()
			t.Errorf("%s: connected", name)
			continue
		}
		if body := harness.Body(resp); resp.StatusCode != c.status || !strings.Contains(body, c.code) {
			t.Errorf("%s: %d %s, want %d %s", name, resp.StatusCode, body, c.status, c.code)
		}
	}
	expectStatus(t, http.StatusUpgradeRequired, "UPGRADE_REQUIRED")(i.Call(t, http.MethodGet, wire.RuntimePath, "X-API-Key", key))
	withoutProtocol, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(i.URL, "http")+wire.RuntimePath, http.Header{"X-Api-Key": {key}})
	if err == nil {
		withoutProtocol.Close()
	}
	if body := harness.Body(resp); resp == nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "VALIDATION_ERROR") {
		t.Errorf("without the subprotocol: %v %s", err, body)
	}

	anonymous := func() *runtimeSocket {
		conn, _, err := dialRuntime(t, i)
		testkit.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		return &runtimeSocket{t: t, conn: conn}
	}
	for hello, code := range map[string]int{
		`"name":"x"`:                                  4500,
		`"name":"x","key":"tk_x_y"`:                   4500,
		fmt.Sprintf(`"name":"x","key":%q`, weak):      4500, // lacks the scope
		fmt.Sprintf(`"name":"x","key":%q`, "e.e.e"):   4500,
		`"name":"` + strings.Repeat("x", 1<<20) + `"`: 1009,
	} {
		r := anonymous()
		r.send("hello", hello)
		testkit.Equal(t, fmt.Sprintf("hello %.60s: close code", hello), r.closeCode(), code)
	}
	for _, frame := range []string{`{"id":1,"op":"accept"}`, `x`} {
		r := anonymous()
		r.write(frame)
		if got := r.closeCode(); got != 4501 || len(r.kept) != 1 || r.kept[0]["event"] != "error" {
			t.Errorf("%s first: closed with %d after %v, want an error and 4501", frame, got, r.kept)
		}
	}
	testkit.Equal(t, "without hello: close code", anonymous().closeCode(), 4501)
	for _, credential := range []string{key, consoleJWT(t, tenant.Team.ID, auth.RunAllCalls)} {
		r := anonymous()
		testkit.Equal(t, "hello without name", r.rejected("hello", fmt.Sprintf(`"key":%q`, credential)), "VALIDATION_ERROR")
		welcome := r.must("hello", fmt.Sprintf(`"name":"x","key":%q,"resumeMs":0`, credential))
		if welcome["pingIntervalMs"] != 10000.0 || welcome["limits"].(map[string]any)["pushedEntries"] != 256.0 {
			t.Errorf("welcome %v", welcome)
		}
	}
}

// A session goes to a runtime of its team, and to runtimes of all teams.
func TestRuntimeGetsSessionsOfItsTeam(t *testing.T) {
	t.Parallel()
	i := harness.Start(t, harness.Env{})
	tenant, other := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "other")
	own := greetedRuntime(t, i, runtimeKey(t, i, other.Team.ID), `"name":"own"`)
	waiting := own.send("accept", "")
	_, allKey := harness.NewKey(t, i, other.Team.ID, auth.RunAllCalls)
	all := greetedRuntime(t, i, allKey, `"name":"all"`)
	filtered := all.send("accept", `"modes":["webrtc"]`)
	accept := all.send("accept", fmt.Sprintf(`"endpoints":["x",%q]`, tenant.Endpoint.ID))
	session, _ := openSession(t, i, tenant)
	if claimed := all.ok(accept); claimed["channel"] != session || claimed["team"] != tenant.Team.ID {
		t.Errorf("claimed %v, want %s", claimed, session)
	}
	session, _ = openSession(t, i, other)
	if claimed := own.ok(waiting); claimed["channel"] != session {
		t.Errorf("claimed %v, want %s", claimed, session)
	}
	for _, m := range all.kept {
		if m["id"] == float64(filtered) {
			t.Errorf("an accept of another mode got %v", m)
		}
	}
}

func TestRevokedCredentialEndsRuntimeConnection(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	for _, revoked := range []struct {
		what   string
		revoke func(key string) error
	}{
		{"key", func(key string) error { return i.App.Admin().Keys.Revoke(t.Context(), key) }},
		{"team", func(string) error {
			_, err := i.App.Admin().Teams.Update(t.Context(), tenant.Team.ID, func(t *team.Team) error { t.Disabled = true; return nil })
			return err
		}},
	} {
		id, key := harness.NewKey(t, i, tenant.Team.ID, auth.RunCalls)
		r := greetedRuntime(t, i, key, `"name":"x"`)
		testkit.Must(t, revoked.revoke(id))
		if code := r.closeCode(); code != 4500 || r.kept[0]["event"] != "error" {
			t.Errorf("%s: closed with %d after %v, want an error and 4500", revoked.what, code, r.kept)
		}
	}
}

// An instance that stops refreshing its connections is dead: others release its claims. If
// it was only slow, it finds out.
func TestClaimsOfDeadInstanceAreReleased(t *testing.T) {
	t.Parallel()
	env := realStores(t)
	i, tenant := startTenant(t, env)
	key := runtimeKey(t, i, tenant.Team.ID)
	session, _ := openSession(t, i, tenant)
	r := greetedRuntime(t, i, key, `"name":"x"`)
	r.must("accept", "")
	store := harness.StoreClient(t, env)
	// Make the claim that of a connection whose instance has died.
	set := func(field, value string) {
		testkit.Must(t, store.Do(t.Context(), store.B().Hset().Key(kv.MetaKey(session)).FieldValue().FieldValue(field, value).Build()).Error())
	}
	set("claimToken", "dead/token")
	for _, command := range [][]string{{"SADD", kv.ClaimsKey("dead"), session}, {"ZADD", kv.ConnectionsKey, "1", "dead"}} {
		testkit.Must(t, store.Do(t.Context(), store.B().Arbitrary(command...).Build()).Error())
	}
	next := greetedRuntime(t, i, key, `"name":"y"`)
	if claimed := next.must("accept", ""); claimed["channel"] != session {
		t.Errorf("claimed %v, want %s", claimed, session)
	}
	if lost := r.push("claim_lost"); lost["channel"] != session {
		t.Errorf("claim_lost %v", lost)
	}
	testkit.Until(t, "the dead connection is forgotten", func() bool {
		n, err := store.Do(t.Context(), store.B().Exists().Key(kv.ClaimsKey("dead")).Build()).AsInt64()
		return err == nil && n == 0
	})
}

// A runtime that knows the ID of another team's connection cannot release its claims.
func TestPreviousConnectionOfAnotherTeamIsIgnored(t *testing.T) {
	t.Parallel()
	i := harness.Start(t, harness.Env{})
	tenant, other := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "other")
	r := connectRuntime(t, i, runtimeKey(t, i, tenant.Team.ID))
	connection := r.must("hello", `"name":"test"`)["connection"]
	session, _ := openSession(t, i, tenant)
	r.must("accept", "")
	greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"next"`).send("accept", "") // would get the session
	foreign := greetedRuntime(t, i, runtimeKey(t, i, other.Team.ID), fmt.Sprintf(`"name":"test","previous":%q`, connection))
	for n := range 20 { // while the claims would be released
		foreign.must("open", fmt.Sprintf(`"channel":"other-%d","endpoint":%q`, n, other.Endpoint.ID))
		r.must("send", fmt.Sprintf(`"channel":%q,"messages":[{"type":"chat","chat":{"text":"x"}}]`, session))
	}
}

// A runtime that commits nothing gets 256 entries.
func TestRuntimeWithoutCommitsIsNotFlooded(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"x"`)
	channel := `"channel":"c"`
	r.must("open", channel+fmt.Sprintf(`,"endpoint":%q`, tenant.Endpoint.ID))
	for n := range 300 {
		r.must("await", channel+fmt.Sprintf(`,"workItemId":"w%d","ttlMs":1`, n))
	}
	positions := make([]string, 256)
	for n := range positions {
		e, position := r.entry()
		if e["workItemId"] != fmt.Sprintf("w%d", n) {
			t.Fatalf("entry %d: %v", n, e)
		}
		positions[n] = position
	}
	r.must("end", channel+`,"reason":"x"`) // nothing is pushed before its reply
	for _, m := range r.kept {
		if m["event"] == "entry" {
			t.Fatalf("got %v, want no more than 256 entries", m)
		}
	}
	r.must("commit", channel+fmt.Sprintf(`,"position":%q`, positions[9]))
	for n := range 10 {
		if e, _ := r.entry(); e["workItemId"] != fmt.Sprintf("w%d", 256+n) {
			t.Fatalf("entry after the commit: %v", e)
		}
	}
	r.must("commit", channel+fmt.Sprintf(`,"position":%q`, positions[255]))
	for n := range 34 {
		if e, _ := r.entry(); e["workItemId"] != fmt.Sprintf("w%d", 266+n) {
			t.Fatalf("entry after the second commit: %v", e)
		}
	}
	if e, _ := r.entry(); e["kind"] != "channel_ended" {
		t.Errorf("last entry %v", e)
	}
}

func TestRuntimeThatDoesNotReadIsClosed(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"x"`)
	bad := `{"id":1,"op":"accept","endpoints":[0` + strings.Repeat(",0", 99) + `]}` // has a reply of 8 KB, so that the queue is full soon
	good := `{"id":1,"op":"release","channel":"c"}`
	deadline := time.Now().Add(testkit.Timeout)
	var err error
	for err == nil && time.Now().Before(deadline) {
		_ = r.conn.SetWriteDeadline(deadline)
		for range 100 {
			err = errors.Join(err, r.conn.WriteMessage(websocket.TextMessage, []byte(bad)), r.conn.WriteMessage(websocket.TextMessage, []byte(good)))
		}
	}
	if err == nil {
		t.Error("the connection stays open")
	}
	testkit.Until(t, "the connection is closed with 4001", func() bool {
		_, metrics := i.Call(t, http.MethodGet, "/metrics")
		return strings.Contains(metrics, "\ntelapi_runtime_connections 0\n") && strings.Contains(metrics, "\ntelapi_sockets_closed_total{code=\"4001\"} 1\n")
	})
}

// 20,000 accepts: half of them are rejected, none is lost.
func TestOutstandingAcceptsAreBounded(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"x"`)
	const accepts = 20_000
	written := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < accepts && err == nil; n++ {
			err = r.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"id":%d,"op":"accept"}`, n+2))
		}
		written <- err
	}()
	_ = r.conn.SetReadDeadline(time.Time{})
	for range accepts - 10_000 {
		_, frame, err := r.conn.ReadMessage() // unchecked: a slow reader would be closed
		testkit.Must(t, err)
		if !strings.Contains(string(frame), `"code":"RATE_LIMIT_EXCEEDED"`) {
			t.Fatalf("got %s, want RATE_LIMIT_EXCEEDED", frame)
		}
	}
	testkit.Must(t, <-written)
	session, _ := openSession(t, i, tenant)
	if claimed := r.ok(2); claimed["channel"] != session {
		t.Errorf("the oldest accept got %v", claimed)
	}
}
