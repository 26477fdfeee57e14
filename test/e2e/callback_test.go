package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/ratelimit"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// phoneCall is a channel without a browser, opened by a runtime.
type phoneCall struct {
	*callruntime.Channel
	t *testing.T
	i *harness.Instance // receives the callbacks
}

const permissiveProfile = `{"commandSources":["bot","external_llm"],"commandPolicies":[{"type":"hangup","enabled":true},{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"]}]}`

func openCall(t *testing.T, i *harness.Instance, r *callruntime.Runtime, id string) phoneCall {
	t.Helper()
	ch, err := r.Open(t.Context(), id, wire.Open{
		Team: "tm_1", Endpoint: "ep_1", CallID: "sip-" + id, TransactionID: "6d9b0fb1-7f0c-4f6c-9a3c-0d6f3a3c1c11", Profile: []byte(permissiveProfile),
	})
	testkit.Must(t, err)
	return phoneCall{ch, t, i}
}

func (c phoneCall) await(o wire.Await) wire.Awaited {
	c.t.Helper()
	item, err := c.Await(c.t.Context(), o)
	testkit.Must(c.t, err)
	return item
}

// postCallback posts a callback for the work item.
func (c phoneCall) postCallback(item wire.Awaited, body string, headers ...string) (harness.Response, string) {
	c.t.Helper()
	return c.i.Post(c.t, harness.Path(item), body, append(headers, "token", item.Token)...)
}

// botMessage returns the body of a callback with one text message.
func (c phoneCall) botMessage(text string) string {
	return fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]}}`, c.ID, text)
}

// startWithRuntime starts an instance and a runtime. The stores pass the same tests, so that
// one kind is enough for what a provider sees.
func startWithRuntime(t *testing.T, env harness.Env) (*harness.Instance, *callruntime.Runtime) {
	t.Helper()
	i := harness.Start(t, env)
	return i, harness.StartRuntime(t, i)
}

func encodeEntry(t *testing.T, e wire.Entry) string {
	t.Helper()
	raw, err := jsonv2.Marshal(e)
	testkit.Must(t, err)
	return string(raw)
}

func TestCallbackIsDeliveredToRuntime(t *testing.T) {
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i, r := startWithRuntime(t, env)
		c := openCall(t, i, r, "call-1")
		for _, row := range []struct {
			kind    wire.WorkItemKind
			body    string
			bearer  bool   // the token is a bearer token, not in the header "token"
			want    string // part of the entries
			receipt string // part of the receipt
			more    int    // entries after the first
		}{
			{wire.BotItem, c.botMessage("Good day"), false, `"text":"Good day"`, `"messages":1`, 0},
			{wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}},"actions":[{"type":"hangup"},{"type":"transfer","target":"tel:+1900"}]}`,
				false, `"bot-trace-transaction-id"`, `"reason":"target_not_allowed"`, 1},
			{wire.BotItem, `{"error":{"code":"TIMEOUT","message":"no answer"}}`, false, `"kind":"provider_error"`, `"messages":0`, 0},
			{wire.LLMItem, `{"choices":[{"message":{"content":"Hello"}}],"commands":[{"type":"hangup"}]}`, true, `"source":"external_llm"`, `"decision":"allowed"`, 1},
			{wire.ToolItem, `[1,2,{"a":null}]`, true, `"result":[1,2,{"a":null}]`, `"messages":1`, 0},
		} {
			item := c.await(wire.Await{Kind: row.kind})
			headers := []string{"token", item.Token}
			if row.bearer {
				headers = []string{"Authorization", "Bearer " + item.Token}
			}
			resp, body := i.Post(t, harness.Path(item)+"?callId=k-1&token=ignored", row.body, headers...)
			wantStatus(t, resp, body, 202, `"status":"accepted"`)
			if !strings.Contains(body, row.receipt) {
				t.Errorf("%s: receipt %s, want %q in it", row.body, body, row.receipt)
			}
			var receipt struct{ CallbackID string }
			testkit.Must(t, json.Unmarshal([]byte(body), &receipt))
			entries := ""
			for range 1 + row.more {
				e := harness.Receive(t, c.Channel)
				if e.CallbackID != receipt.CallbackID || e.WorkItemID != item.WorkItemID || e.Trace.CallID != "k-1" || e.Trace.TransactionID != c.TransactionID {
					t.Errorf("entry %+v, want callback %s of work item %s", e, receipt.CallbackID, item.WorkItemID)
				}
				entries += encodeEntry(t, e)
			}
			if !strings.Contains(entries, row.want) {
				t.Errorf("%s: entries %s, want %q in them", row.body, entries, row.want)
			}
			expectStatus(t, 409, `"duplicate":true`)(i.Post(t, harness.Path(item), row.body, headers...))
		}
		open := c.await(wire.Await{})
		testkit.Must(t, c.End(t.Context(), "hung up"))
		expectStatus(t, 410, code("CONVERSATION_ENDED"))(c.postCallback(open, c.botMessage("x")))
	})
}

// A callback that is rejected before its token is consumed can be corrected and
// sent again.
func TestRejectedCallbackDoesNotConsumeToken(t *testing.T) {
	t.Parallel()
	i, r := startWithRuntime(t, harness.Env{})
	c, other := openCall(t, i, r, "call-1"), openCall(t, i, r, "call-2")
	bot, llm, foreign := c.await(wire.Await{}), c.await(wire.Await{Kind: wire.LLMItem}), other.await(wire.Await{})
	good := c.botMessage("Hello")
	token := []string{"token", bot.Token}
	for _, row := range []struct {
		name, path, body string
		headers          []string
		status           int
		code             string
	}{
		{"text/plain", harness.Path(bot), good, append(token, "Content-Type", "text/plain"), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"1 MiB + 1 byte", harness.Path(bot), good + strings.Repeat(" ", 1<<20+1-len(good)), token, 413, "PAYLOAD_TOO_LARGE"},
		{"1 MiB + 1 byte without a token", harness.Path(bot), good + strings.Repeat(" ", 1<<20+1-len(good)), nil, 413, "PAYLOAD_TOO_LARGE"},
		{"unknown token", harness.Path(bot), good, []string{"token", strings.Repeat("A", 43)}, 401, "CALLBACK_TOKEN_INVALID"},
		{"token of another channel", harness.Path(bot), good, []string{"token", foreign.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"path of another work item", "/api/v1/webhooks/llm/call-1/other", `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"path of another kind", "/api/v1/webhooks/tool/call-1/" + llm.WorkItemID, `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"body of another conversation", harness.Path(bot), other.botMessage("x"), token, 400, "VALIDATION_ERROR"},
		{"malformed JSON", harness.Path(bot), "{", token, 400, "MALFORMED_JSON"},
	} {
		resp, body := i.Post(t, row.path, row.body, row.headers...)
		if resp.StatusCode != row.status || !strings.Contains(body, code(row.code)) {
			t.Errorf("%s: got %d %s, want %d %s", row.name, resp.StatusCode, body, row.status, row.code)
		}
	}
	for _, row := range []struct {
		call phoneCall
		item wire.Awaited
		body string
	}{{c, bot, good + strings.Repeat(" ", 1<<20-len(good))}, {c, llm, "\ufeff" + `{"content":"x"}`}, {other, foreign, other.botMessage("x")}} {
		expectStatus(t, 202, `"status":"accepted"`)(row.call.postCallback(row.item, row.body))
	}
}

// An instance that only receives callbacks does not need its database.
func TestCallbacksWorkWithoutDatabase(t *testing.T) {
	env := realStores(t)
	first := harness.Start(t, env)
	i := harness.Start(t, harness.Merge(env, harness.Env{"FEATURE_API_ACCESS": "false", "DATABASE_URL": "postgres://user:x@127.0.0.1:1/none"}))
	c := openCall(t, i, harness.StartRuntime(t, first), "call-1")
	expectStatus(t, 202, `"accepted"`)(c.postCallback(c.await(wire.Await{}), c.botMessage("Hello")))
}

func TestCallbackTokenGuessingIsLimited(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	c := openCall(t, i, harness.StartRuntime(t, i), "call-1")
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	item := c.await(wire.Await{})
	testkit.Until(t, "wrong tokens get 429", func() bool {
		resp, body := i.Post(t, harness.Path(item), c.botMessage("x"), "token", "guess")
		return resp.StatusCode == http.StatusTooManyRequests && strings.Contains(body, `"tier":"auth"`)
	})
	testkit.Until(t, "the cause of a 401 in the log", func() bool { return i.Log.Has(`"cause":"unknown or expired token, `) })
	expectStatus(t, 202, `"accepted"`)(c.postCallback(item, c.botMessage("Hello")))
}

// A gateway profile cannot allow a command that the platform forbids, and the
// capabilities do not list the command.
func TestPlatformPolicyOverridesGatewayProfile(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir(), "COMMANDS_DISABLED": "hangup, play_audio", "TRANSFER_ALLOWED_TARGETS": "tel:+4930*", "TRANSFER_ALLOWED_HEADERS": "Diversion"}
	i, tenant := startTenant(t, env)
	c := openCall(t, i, harness.StartRuntime(t, i), "call-1")
	_, body := c.postCallback(c.await(wire.Await{}), `{"conversation":{"identifier":{"id":"call-1"}},"actions":[
		{"type":"hangup"},{"type":"transfer","target":"+49 40 1234"},{"type":"transfer","target":"+49 30 1234"}]}`)
	if !containsAll(body, `{"type":"hangup","decision":"denied","reason":"platform_disabled"}`,
		`{"type":"transfer","decision":"denied","reason":"target_not_allowed"},{"type":"transfer","decision":"allowed"}`) {
		t.Errorf("receipt is %s, want hangup and the transfer to +49 40 denied, the transfer to +49 30 allowed", body)
	}
	if _, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key); strings.Contains(body, `"type":"play_audio"`) || !strings.Contains(body, `"type":"transfer"`) {
		t.Errorf("capabilities are %s, want transfer without play_audio", body)
	}
}

// The callbacks are full of URLs: of a listener, and of a host that is reached
// through a proxy. The listener is that proxy too, so every attempt to fetch a URL
// connects to it. The server is a separate process because net/http reads the
// proxy settings only once per process.
func TestCallbackSendsNoOutboundRequests(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer func() { _ = listener.Close() }()
	base := "http://" + listener.Addr().String()
	env := harness.Env{"DATA_DIR": t.TempDir(), "HTTP_PROXY": base, "HTTPS_PROXY": base}
	i, process := harness.Serve(t, env)
	team := harness.RunJSON(t, env, "team", "create", "runtimes")["id"].(string)
	key := harness.RunJSON(t, env, "key", "create", "--team", team, "--scope", "RUN_ALL_CALLS")["key"].(string)
	c := openCall(t, i, harness.ConnectRuntime(t, i.URL, key), "call-1")
	for _, url := range []string{base + "/x", "http://callback.example/x", "https://callback.example/x"} {
		body := fmt.Sprintf(`{"conversation":{"identifier":{"id":"call-1"}},"callbackUrl":%[1]q,"from":{"avatar":%[1]q},
			"messages":{"message":[{"content":{"textMessage":{"textHtml":"<p>Hi<img src='%[1]s'><script src='%[1]s'></script></p>"},"voiceMessage":%[1]q}}]},
			"metadata":{"webhook":%[1]q},"channelData":[{"key":"url","value":%[1]q}],"nluData":%[1]q,"actions":[{"type":"play_audio","url":%[1]q},{"type":"hangup"}]}`, url)
		expectStatus(t, 202, "accepted")(c.postCallback(c.await(wire.Await{}), body, "Referer", url, "Origin", url))
	}
	testkit.Must(t, c.End(t.Context(), "done"))
	for harness.Receive(t, c.Channel).Kind != wire.KindChannelEnded {
	}
	// A process that has ended makes no more connections.
	testkit.Must(t, process.Cmd.Process.Signal(syscall.SIGTERM))
	process.WaitExit(t)
	for _, request := range pendingConnections(t, listener) {
		t.Errorf("outbound connection: %q", request)
	}
}

// pendingConnections accepts all connections made to the listener so far and
// returns the data that was sent on each. Connections are accepted in the order
// in which they were made, so a connection of the function itself marks the end.
func pendingConnections(t *testing.T, listener net.Listener) (data []string) {
	t.Helper()
	last, err := net.Dial("tcp", listener.Addr().String())
	testkit.Must(t, err)
	defer func() { _ = last.Close() }()
	for {
		conn, err := listener.Accept()
		testkit.Must(t, err)
		if conn.RemoteAddr().String() == last.LocalAddr().String() {
			_ = conn.Close()
			return data
		}
		sent, _ := io.ReadAll(conn)
		_ = conn.Close()
		data = append(data, string(sent))
	}
}
