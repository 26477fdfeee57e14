package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/ratelimit"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// phoneCall is a channel without a browser, opened by a runtime.
type phoneCall struct {
	*calls.Channel
	t *testing.T
	i *harness.Instance // receives the callbacks
}

const permissiveProfile = `{"commandSources":["bot","external_llm"],"commandPolicies":[{"type":"hangup","enabled":true},{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"]}]}`

func openCall(t *testing.T, i *harness.Instance, r *calls.Runtime, id string) phoneCall {
	t.Helper()
	ch, err := r.Open(t.Context(), calls.OpenOptions{
		ChannelID: id, TeamID: "tm_1", EndpointID: "ep_1", CallID: "sip-" + id, TransactionID: "6d9b0fb1-7f0c-4f6c-9a3c-0d6f3a3c1c11", Profile: []byte(permissiveProfile),
	})
	if err != nil {
		t.Fatal(err)
	}
	return phoneCall{ch, t, i}
}

func (c phoneCall) await(o calls.AwaitOptions) calls.WorkItem {
	c.t.Helper()
	item, err := c.Await(c.t.Context(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	return item
}

// postCallback posts a callback for the work item.
func (c phoneCall) postCallback(item calls.WorkItem, body string, headers ...string) (harness.Response, string) {
	c.t.Helper()
	return c.i.Post(c.t, item.Path, body, append(headers, "token", item.Token)...)
}

// botMessage returns the body of a callback with one text message.
func (c phoneCall) botMessage(text string) string {
	return fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]}}`, c.ID, text)
}

// startWithRuntime starts an instance and a runtime. The stores pass the same tests, so that
// one kind is enough for what a provider sees.
func startWithRuntime(t *testing.T, env harness.Env) (*harness.Instance, *calls.Runtime) {
	t.Helper()
	env = harness.WithDataDir(t, env)
	return harness.Start(t, env), harness.StartRuntime(t, env)
}

func encodeEntry(t *testing.T, e wire.Entry) string {
	t.Helper()
	raw, err := jsonv2.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
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
			item := c.await(calls.AwaitOptions{Kind: row.kind})
			headers := []string{"token", item.Token}
			if row.bearer {
				headers = []string{"Authorization", "Bearer " + item.Token}
			}
			resp, body := i.Post(t, item.Path+"?callId=k-1&token=ignored", row.body, headers...)
			wantStatus(t, resp, body, 202, `"status":"accepted"`)
			if !strings.Contains(body, row.receipt) {
				t.Errorf("%s: receipt %s, want %q in it", row.body, body, row.receipt)
			}
			var receipt struct{ CallbackID string }
			if err := json.Unmarshal([]byte(body), &receipt); err != nil {
				t.Fatal(err)
			}
			entries := ""
			for range 1 + row.more {
				e := harness.Receive(t, c.Channel)
				if e.CallbackID != receipt.CallbackID || e.WorkItemID != item.ID || e.Trace.CallID != "k-1" || e.Trace.TransactionID != c.TransactionID {
					t.Errorf("entry %+v, want callback %s of work item %s", e, receipt.CallbackID, item.ID)
				}
				entries += encodeEntry(t, e)
			}
			if !strings.Contains(entries, row.want) {
				t.Errorf("%s: entries %s, want %q in them", row.body, entries, row.want)
			}
		}
	})
}

// A callback that is rejected before its token is consumed can be corrected and
// sent again.
func TestRejectedCallbackDoesNotConsumeToken(t *testing.T) {
	t.Parallel()
	i, r := startWithRuntime(t, harness.Env{})
	c, other := openCall(t, i, r, "call-1"), openCall(t, i, r, "call-2")
	bot, llm, foreign := c.await(calls.AwaitOptions{}), c.await(calls.AwaitOptions{Kind: wire.LLMItem}), other.await(calls.AwaitOptions{})
	good := c.botMessage("Hello")
	token := []string{"token", bot.Token}
	for _, row := range []struct {
		name, path, body string
		headers          []string
		status           int
		code             string
	}{
		{"text/plain", bot.Path, good, append(token, "Content-Type", "text/plain"), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"text/plain without a token", bot.Path, good, []string{"Content-Type", "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"1 MiB + 1 byte", bot.Path, good + strings.Repeat(" ", 1<<20+1-len(good)), token, 413, "PAYLOAD_TOO_LARGE"},
		{"1 MiB + 1 byte without a token", bot.Path, good + strings.Repeat(" ", 1<<20+1-len(good)), nil, 413, "PAYLOAD_TOO_LARGE"},
		{"no token", bot.Path, good, nil, 401, "CALLBACK_TOKEN_INVALID"},
		{"no token, malformed JSON", bot.Path, "{", nil, 401, "CALLBACK_TOKEN_INVALID"},
		{"token only in the query", bot.Path + "?token=" + bot.Token, good, nil, 401, "CALLBACK_TOKEN_INVALID"},
		{"Bearer prefix in the token header", bot.Path, good, []string{"token", "Bearer " + bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"Authorization on the bot route", bot.Path, good, []string{"Authorization", "Bearer " + bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"token as API key", bot.Path, good, []string{"X-API-Key", bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"unknown token", bot.Path, good, []string{"token", strings.Repeat("A", 43)}, 401, "CALLBACK_TOKEN_INVALID"},
		{"token of another channel", bot.Path, good, []string{"token", foreign.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"token of another kind", bot.Path, good, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"path of another channel", foreign.Path, other.botMessage("x"), token, 401, "CALLBACK_TOKEN_INVALID"},
		{"path of another work item", "/api/v1/webhooks/llm/call-1/other", `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"path of another kind", "/api/v1/webhooks/tool/call-1/" + llm.ID, `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
		{"invalid channel ID", "/api/v1/webhooks/bot/a%7Bb%7D", good, token, 401, "CALLBACK_TOKEN_INVALID"},
		{"unknown channel", "/api/v1/webhooks/bot/unknown", good, token, 401, "CALLBACK_TOKEN_INVALID"},
		{"body of another conversation", bot.Path, other.botMessage("x"), token, 400, "VALIDATION_ERROR"},
		{"body of another conversation, unknown token", bot.Path, other.botMessage("x"), []string{"token", "x"}, 401, "CALLBACK_TOKEN_INVALID"},
		{"malformed JSON", bot.Path, "{", token, 400, "MALFORMED_JSON"},
		{"empty body", bot.Path, "", token, 400, "MALFORMED_JSON"},
		{"duplicate member", bot.Path, `{"a":1,"a":2}`, token, 400, "MALFORMED_JSON"},
		{"invalid UTF-8", bot.Path, "{\"a\":\"\xff\"}", token, 400, "MALFORMED_JSON"},
		{"10,000 levels", bot.Path, strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000), token, 400, "MALFORMED_JSON"},
		{"number out of range", bot.Path, `{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"sequence":1e999,"content":{}}]}}`, token, 400, "VALIDATION_ERROR"},
		{"invalid transfer target", bot.Path, `{"conversation":{"identifier":{"id":"call-1"}},"actions":{"type":"transfer","target":"http://x"}}`, token, 400, "VALIDATION_ERROR"},
	} {
		resp, body := i.Post(t, row.path, row.body, row.headers...)
		if resp.StatusCode != row.status || !strings.Contains(body, code(row.code)) {
			t.Errorf("%s: got %d %s, want %d %s", row.name, resp.StatusCode, body, row.status, row.code)
		}
	}
	for _, row := range []struct {
		call phoneCall
		item calls.WorkItem
		body string
	}{{c, bot, good + strings.Repeat(" ", 1<<20-len(good))}, {c, llm, "\ufeff" + `{"content":"x"}`}, {other, foreign, other.botMessage("x")}} {
		resp, body := row.call.postCallback(row.item, row.body)
		wantStatus(t, resp, body, 202, `"status":"accepted"`)
	}
}

func TestUsedCancelledExpiredAndEndedTokensAreRejected(t *testing.T) {
	t.Parallel()
	i, r := startWithRuntime(t, harness.Env{})
	c := openCall(t, i, r, "call-1")
	item := c.await(calls.AwaitOptions{})
	resp, first := c.postCallback(item, c.botMessage("once"))
	wantStatus(t, resp, first, 202, `"accepted"`)
	var receipt struct{ CallbackID string }
	if err := json.Unmarshal([]byte(first), &receipt); err != nil {
		t.Fatal(err)
	}
	resp, body := c.postCallback(item, " "+c.botMessage("once"))
	wantStatus(t, resp, body, 409, code("CALLBACK_CONSUMED"))
	if !containsAll(body, `"duplicate":true`, receipt.CallbackID) {
		t.Errorf("same body again: %s, want the first receipt", body)
	}
	resp, body = c.postCallback(item, c.botMessage("twice"))
	wantStatus(t, resp, body, 409, `"duplicate":false`)
	if strings.Contains(body, receipt.CallbackID) {
		t.Errorf("different body: %s, want no receipt", body)
	}

	cancelled := c.await(calls.AwaitOptions{})
	if err := c.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	resp, body = c.postCallback(cancelled, c.botMessage("x"))
	wantStatus(t, resp, body, 409, `"state":"cancelled"`)

	expired := c.await(calls.AwaitOptions{TTL: 50 * time.Millisecond})
	e := harness.Receive(t, c.Channel) // "once"
	for e.Kind != wire.KindTimeout {
		e = harness.Receive(t, c.Channel)
	}
	if e.WorkItemID != expired.ID || e.WorkItemKind != "bot" {
		t.Errorf("timeout entry %+v, want one of work item %s", e, expired.ID)
	}
	resp, body = c.postCallback(expired, c.botMessage("x"))
	wantStatus(t, resp, body, 401, code("CALLBACK_TOKEN_INVALID"))

	reusable := c.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	stamped := strings.Replace(c.botMessage("again"), `"message":[{`, `"timestamp":"2026-11-15T09:30:00Z","message":[{`, 1)
	for n, row := range []struct {
		body   string
		status int
	}{{c.botMessage("again"), 202}, {c.botMessage("again"), 202}, {stamped, 202}, {stamped, 409}, {c.botMessage("again"), 202}} {
		if resp, body := c.postCallback(reusable, row.body); resp.StatusCode != row.status {
			t.Errorf("use %d of a channel token: got %d %s, want %d", n+1, resp.StatusCode, body, row.status)
		}
	}

	open := c.await(calls.AwaitOptions{})
	if err := c.End(t.Context(), "hung up"); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []calls.WorkItem{open, reusable, item} {
		resp, body = c.postCallback(ended, c.botMessage("x"))
		wantStatus(t, resp, body, 410, code("CONVERSATION_ENDED"))
	}
	resp, body = i.Post(t, item.Path, c.botMessage("x"), "token", "guessed")
	wantStatus(t, resp, body, 401, code("CALLBACK_TOKEN_INVALID"))
}

func TestEarlyCallbackIsParked(t *testing.T) {
	t.Parallel()
	i, r := startWithRuntime(t, harness.Env{})
	c := openCall(t, i, r, "call-1")
	first, second, third := c.await(calls.AwaitOptions{}), c.await(calls.AwaitOptions{}), c.await(calls.AwaitOptions{})
	for _, step := range []struct {
		item   calls.WorkItem
		text   string
		status string
	}{{third, "three", "parked"}, {second, "two", "parked"}, {first, "one", "accepted"}} {
		resp, body := c.postCallback(step.item, c.botMessage(step.text))
		wantStatus(t, resp, body, 202, fmt.Sprintf(`"status":%q`, step.status))
		_, metrics := i.Call(t, "GET", "/metrics")
		if parked := !strings.Contains(metrics, "\ntelapi_callback_oldest_parked_seconds 0\n"); parked != (step.status == "parked") {
			t.Errorf("after %q: metrics report a parked callback: %v, want %v", step.text, parked, !parked)
		}
	}
	for _, want := range []string{"one", "two", "three"} {
		if e := harness.Receive(t, c.Channel); e.Text != want {
			t.Errorf("received %q, want %q", e.Text, want)
		}
	}
}

// Exactly one of several concurrent callbacks with the same token is routed, on
// any number of instances and in the order of the work items.
func TestConcurrentDuplicateCallbacksAreRoutedOnce(t *testing.T) {
	t.Parallel()
	const tokens, tries = 30, 5
	onAllStores(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, env)
		instances := []*harness.Instance{harness.Start(t, env)}
		if env["REDIS_URL"] != "" {
			instances = append(instances, harness.Start(t, harness.Env{"REDIS_URL": env["REDIS_URL"], "DATABASE_URL": env["DATABASE_URL"]}))
		}
		setLimit(t, instances[0], ratelimit.Webhook, 1_000_000, time.Minute)
		for _, i := range instances {
			testkit.Until(t, "the new limit applies", func() bool {
				resp, _ := i.Post(t, "/api/v1/webhooks/bot/x", "{}")
				return strings.Contains(resp.Header.Get("RateLimit-Policy"), "q=1000000")
			})
		}
		c := openCall(t, instances[0], harness.StartRuntime(t, env), "call-1")
		items := make(chan calls.WorkItem, tokens)
		var routed, duplicates atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for item := range items {
					var requests sync.WaitGroup
					for n := range tries {
						requests.Go(func() {
							resp, body := instances[n%len(instances)].Post(t, item.Path, c.botMessage(item.ID), "token", item.Token)
							switch {
							case resp.StatusCode == 202:
								routed.Add(1)
							case resp.StatusCode == 409 && strings.Contains(body, `"duplicate":true`):
								duplicates.Add(1)
							default:
								t.Errorf("callback: %d %s, want 202 or 409 with duplicate", resp.StatusCode, body)
							}
						})
					}
					requests.Wait()
				}
			})
		}
		var order []string
		for range tokens {
			item := c.await(calls.AwaitOptions{})
			order = append(order, item.ID)
			items <- item
		}
		close(items)
		wg.Wait()
		if routed.Load() != int64(tokens) || duplicates.Load() != int64(tokens*(tries-1)) {
			t.Errorf("%d routed and %d duplicates, want %d and %d", routed.Load(), duplicates.Load(), tokens, tokens*(tries-1))
		}
		for n, want := range order {
			if e := harness.Receive(t, c.Channel); e.Text != want || e.WorkItemID != want {
				t.Fatalf("entry %d is of work item %s, want %s", n, e.WorkItemID, want)
			}
		}
	})
}

// A deployment that only receives callbacks does not need its database.
func TestCallbacksWorkWithoutDatabase(t *testing.T) {
	env := harness.Env{"FEATURE_API_ACCESS": "false", "DATABASE_URL": "postgres://user:x@127.0.0.1:1/none", "DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	c := openCall(t, i, harness.StartRuntime(t, env), "call-1")
	resp, body := c.postCallback(c.await(calls.AwaitOptions{}), c.botMessage("Hello"))
	wantStatus(t, resp, body, 202, `"accepted"`)
}

func TestCallbackTokenGuessingIsLimited(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	c := openCall(t, i, harness.StartRuntime(t, env), "call-1")
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	item := c.await(calls.AwaitOptions{})
	testkit.Until(t, "wrong tokens get 429", func() bool {
		resp, body := i.Post(t, item.Path, c.botMessage("x"), "token", "guess")
		return resp.StatusCode == http.StatusTooManyRequests && strings.Contains(body, `"tier":"auth"`)
	})
	testkit.Until(t, "the cause of a 401 in the log", func() bool { return i.Log.Has(`"cause":"unknown or expired token, `) })
	resp, body := c.postCallback(item, c.botMessage("Hello"))
	wantStatus(t, resp, body, 202, `"accepted"`)
}

// A gateway profile cannot allow a command that the platform forbids, and the
// capabilities do not list the command.
func TestPlatformPolicyOverridesGatewayProfile(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir(), "COMMANDS_DISABLED": "hangup, play_audio", "TRANSFER_ALLOWED_TARGETS": "tel:+4930*", "TRANSFER_ALLOWED_HEADERS": "Diversion"}
	i := harness.Start(t, env)
	tenant := harness.NewTenant(t, i, "tenant")
	c := openCall(t, i, harness.StartRuntime(t, env), "call-1")
	_, body := c.postCallback(c.await(calls.AwaitOptions{}), `{"conversation":{"identifier":{"id":"call-1"}},"actions":[
		{"type":"hangup"},{"type":"transfer","target":"+49 40 1234"},{"type":"transfer","target":"+49 30 1234"}]}`)
	if !containsAll(body, `{"type":"hangup","decision":"denied","reason":"platform_disabled"}`,
		`{"type":"transfer","decision":"denied","reason":"target_not_allowed"},{"type":"transfer","decision":"allowed"}`) {
		t.Errorf("receipt is %s, want hangup and the transfer to +49 40 denied, the transfer to +49 30 allowed", body)
	}
	if _, body := i.Call(t, "GET", capabilities, "X-API-Key", tenant.Key); strings.Contains(body, `"type":"play_audio"`) || !strings.Contains(body, `"type":"transfer"`) {
		t.Errorf("capabilities are %s, want transfer without play_audio", body)
	}
}
