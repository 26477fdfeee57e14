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

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/ratelimit"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// phoneCall is a conversation without a browser, and the service around it.
type phoneCall struct {
	*callruntime.Channel
	t *testing.T
	i *boot.Instance
}

const freeFlow = `{"commandSources":["bot","external_llm"],"commandPolicies":[{"type":"hangup","enabled":true},{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"]}]}`

func openCall(t *testing.T, i *boot.Instance, r *callruntime.Runtime, id string) phoneCall {
	t.Helper()
	ch, err := r.Open(t.Context(), callruntime.OpenOptions{
		ChannelID: id, TeamID: "tm_1", EndpointID: "ep_1", CallID: "sip-" + id, TransactionID: "6d9b0fb1-7f0c-4f6c-9a3c-0d6f3a3c1c11", Profile: []byte(freeFlow),
	})
	if err != nil {
		t.Fatal(err)
	}
	return phoneCall{ch, t, i}
}

func (c phoneCall) await(o callruntime.AwaitOptions) callruntime.WorkItem {
	c.t.Helper()
	item, err := c.Await(c.t.Context(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	return item
}

func (c phoneCall) answer(item callruntime.WorkItem, body string, headers ...string) (answer, string) {
	c.t.Helper()
	return post(c.t, c.i, item.Path, body, append(headers, "token", item.Token)...)
}

func (c phoneCall) says(text string) string {
	return fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]}}`, c.ID, text)
}

// withCalls tries something on every kind of store.
func withCalls(t *testing.T, try func(t *testing.T, i *boot.Instance, r *callruntime.Runtime)) {
	backends(t, func(t *testing.T, env boot.Env) {
		env = talk.WithDataDir(t, env)
		i := boot.Start(t, env)
		try(t, i, talk.StartRuntime(t, env))
	})
}

func encode(t *testing.T, e wire.Entry) string {
	t.Helper()
	raw, err := jsonv2.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestCallbackIsDeliveredToRuntime(t *testing.T) {
	withCalls(t, func(t *testing.T, i *boot.Instance, r *callruntime.Runtime) {
		c := openCall(t, i, r, "call-1")
		for _, row := range []struct {
			kind        wire.WorkItemKind
			body        string
			bearer      bool
			want        string // in the entries
			receipt     string
			alsoEntries int
		}{
			{wire.BotItem, c.says("Good day"), false, `"text":"Good day"`, `"messages":1`, 0},
			{wire.BotItem, `{"conversation":{"identifier":{"id":"call-1"}},"actions":[{"type":"hangup"},{"type":"transfer","target":"tel:+1900"}]}`,
				false, `"bot-trace-transaction-id"`, `"reason":"target_not_allowed"`, 1},
			{wire.BotItem, `{"error":{"code":"TIMEOUT","message":"no answer"}}`, false, `"kind":"provider_error"`, `"messages":0`, 0},
			{wire.LLMItem, `{"choices":[{"message":{"content":"Hello"}}],"commands":[{"type":"hangup"}]}`, true, `"source":"external_llm"`, `"decision":"allowed"`, 1},
			{wire.ToolItem, `[1,2,{"a":null}]`, true, `"result":[1,2,{"a":null}]`, `"messages":1`, 0},
		} {
			item := c.await(callruntime.AwaitOptions{Kind: row.kind})
			headers := []string{"token", item.Token}
			if row.bearer {
				headers = []string{"Authorization", "Bearer " + item.Token}
			}
			resp, body := post(t, i, item.Path+"?callId=k-1&token=ignored", row.body, headers...)
			wantStatus(t, resp, body, 202, `"status":"accepted"`)
			if !strings.Contains(body, row.receipt) {
				t.Errorf("%s: answered %s", row.body, body)
			}
			var taken struct{ CallbackID string }
			if err := json.Unmarshal([]byte(body), &taken); err != nil {
				t.Fatal(err)
			}
			all := ""
			for range 1 + row.alsoEntries {
				e := talk.Receive(t, c.Channel)
				if e.CallbackID != taken.CallbackID || e.WorkItemID != item.ID || e.Trace.CallID != "k-1" || e.Trace.TransactionID != c.TransactionID {
					t.Errorf("entry %+v of work item %s", e, item.ID)
				}
				all += encode(t, e)
			}
			if !strings.Contains(all, row.want) {
				t.Errorf("%s: on the stream is %s", row.body, all)
			}
		}
	})
}

// Whatever is wrong with a callback that consumes nothing, its token is still
// good afterwards.
func TestRejectedCallbackDoesNotConsumeToken(t *testing.T) {
	withCalls(t, func(t *testing.T, i *boot.Instance, r *callruntime.Runtime) {
		c, other := openCall(t, i, r, "call-1"), openCall(t, i, r, "call-2")
		bot, llm, foreign := c.await(callruntime.AwaitOptions{}), c.await(callruntime.AwaitOptions{Kind: wire.LLMItem}), other.await(callruntime.AwaitOptions{})
		good := c.says("Hello")
		token := []string{"token", bot.Token}
		for _, row := range []struct {
			name, path, body string
			headers          []string
			status           int
			code             string
		}{
			{"text/plain", bot.Path, good, append(token, "Content-Type", "text/plain"), 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"text/plain without a token", bot.Path, good, []string{"Content-Type", "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
			{"1 MiB and a byte", bot.Path, good + strings.Repeat(" ", 1<<20+1-len(good)), token, 413, "PAYLOAD_TOO_LARGE"},
			{"1 MiB and a byte without a token", bot.Path, good + strings.Repeat(" ", 1<<20+1-len(good)), nil, 413, "PAYLOAD_TOO_LARGE"},
			{"no token", bot.Path, good, nil, 401, "CALLBACK_TOKEN_INVALID"},
			{"no token and no JSON", bot.Path, "{", nil, 401, "CALLBACK_TOKEN_INVALID"},
			{"token in the query alone", bot.Path + "?token=" + bot.Token, good, nil, 401, "CALLBACK_TOKEN_INVALID"},
			{"Bearer in the header token", bot.Path, good, []string{"token", "Bearer " + bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"Authorization on the bot route", bot.Path, good, []string{"Authorization", "Bearer " + bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"an API key instead", bot.Path, good, []string{"X-API-Key", bot.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"an unknown token", bot.Path, good, []string{"token", strings.Repeat("A", 43)}, 401, "CALLBACK_TOKEN_INVALID"},
			{"another channel's token", bot.Path, good, []string{"token", foreign.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"another kind's token", bot.Path, good, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"for another channel", foreign.Path, other.says("x"), token, 401, "CALLBACK_TOKEN_INVALID"},
			{"another work item", "/api/v1/webhooks/llm/call-1/other", `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"on the tool route", "/api/v1/webhooks/tool/call-1/" + llm.ID, `{"content":"x"}`, []string{"token", llm.Token}, 401, "CALLBACK_TOKEN_INVALID"},
			{"a channel that cannot be", "/api/v1/webhooks/bot/a%7Bb%7D", good, token, 401, "CALLBACK_TOKEN_INVALID"},
			{"a channel that is not there", "/api/v1/webhooks/bot/nobody", good, token, 401, "CALLBACK_TOKEN_INVALID"},
			{"another conversation's body", bot.Path, other.says("x"), token, 400, "VALIDATION_ERROR"},
			{"another conversation's body, unknown token", bot.Path, other.says("x"), []string{"token", "x"}, 401, "CALLBACK_TOKEN_INVALID"},
			{"no JSON", bot.Path, "{", token, 400, "MALFORMED_JSON"},
			{"nothing", bot.Path, "", token, 400, "MALFORMED_JSON"},
			{"a name twice", bot.Path, `{"a":1,"a":2}`, token, 400, "MALFORMED_JSON"},
			{"invalid UTF-8", bot.Path, "{\"a\":\"\xff\"}", token, 400, "MALFORMED_JSON"},
			{"10,000 levels", bot.Path, strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000), token, 400, "MALFORMED_JSON"},
			{"a number that is too large", bot.Path, `{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"sequence":1e999,"content":{}}]}}`, token, 400, "VALIDATION_ERROR"},
			{"a target of another form", bot.Path, `{"conversation":{"identifier":{"id":"call-1"}},"actions":{"type":"transfer","target":"http://x"}}`, token, 400, "VALIDATION_ERROR"},
		} {
			resp, body := post(t, i, row.path, row.body, row.headers...)
			if resp.StatusCode != row.status || !strings.Contains(body, code(row.code)) {
				t.Errorf("%s: got %d %s, want %d %s", row.name, resp.StatusCode, body, row.status, row.code)
			}
		}
		for _, last := range []struct {
			c    phoneCall
			item callruntime.WorkItem
			body string
		}{{c, bot, good + strings.Repeat(" ", 1<<20-len(good))}, {c, llm, `{"content":"x"}`}, {other, foreign, other.says("x")}} {
			resp, body := last.c.answer(last.item, last.body)
			wantStatus(t, resp, body, 202, `"status":"accepted"`)
		}
	})
}

func TestUsedCancelledExpiredAndEndedTokensAreRejected(t *testing.T) {
	withCalls(t, func(t *testing.T, i *boot.Instance, r *callruntime.Runtime) {
		c := openCall(t, i, r, "call-1")
		item := c.await(callruntime.AwaitOptions{})
		resp, first := c.answer(item, c.says("once"))
		wantStatus(t, resp, first, 202, `"accepted"`)
		var taken struct{ CallbackID string }
		if err := json.Unmarshal([]byte(first), &taken); err != nil {
			t.Fatal(err)
		}
		resp, body := c.answer(item, " "+c.says("once"))
		wantStatus(t, resp, body, 409, code("CALLBACK_CONSUMED"))
		if !containsAll(body, `"duplicate":true`, taken.CallbackID) {
			t.Errorf("the same body again: %s", body)
		}
		resp, body = c.answer(item, c.says("twice"))
		wantStatus(t, resp, body, 409, `"duplicate":false`)
		if strings.Contains(body, taken.CallbackID) {
			t.Errorf("another body is shown the first one's receipt: %s", body)
		}

		given := c.await(callruntime.AwaitOptions{})
		if err := c.Cancel(t.Context(), given.ID); err != nil {
			t.Fatal(err)
		}
		resp, body = c.answer(given, c.says("x"))
		wantStatus(t, resp, body, 409, `"state":"cancelled"`)

		late := c.await(callruntime.AwaitOptions{TTL: 50 * time.Millisecond})
		e := talk.Receive(t, c.Channel) // "once"
		for e.Kind != wire.KindTimeout {
			e = talk.Receive(t, c.Channel)
		}
		if e.WorkItemID != late.ID || e.WorkItemKind != "bot" {
			t.Errorf("timed out: %+v", e)
		}
		resp, body = c.answer(late, c.says("x"))
		wantStatus(t, resp, body, 401, code("CALLBACK_TOKEN_INVALID"))

		ongoing := c.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel})
		stamped := strings.Replace(c.says("again"), `"message":[{`, `"timestamp":"2026-11-15T09:30:00Z","message":[{`, 1)
		for n, row := range []struct {
			body   string
			status int
		}{{c.says("again"), 202}, {c.says("again"), 202}, {stamped, 202}, {stamped, 409}, {c.says("again"), 202}} {
			if resp, body := c.answer(ongoing, row.body); resp.StatusCode != row.status {
				t.Errorf("use %d of a channel's token: %d %s", n+1, resp.StatusCode, body)
			}
		}

		open := c.await(callruntime.AwaitOptions{})
		if err := c.End(t.Context(), "hung up"); err != nil {
			t.Fatal(err)
		}
		for _, over := range []callruntime.WorkItem{open, ongoing, item} {
			resp, body = c.answer(over, c.says("x"))
			wantStatus(t, resp, body, 410, code("CONVERSATION_ENDED"))
		}
		resp, body = post(t, i, item.Path, c.says("x"), "token", "guessed")
		wantStatus(t, resp, body, 401, code("CALLBACK_TOKEN_INVALID"))
	})
}

func TestEarlyCallbackIsParked(t *testing.T) {
	withCalls(t, func(t *testing.T, i *boot.Instance, r *callruntime.Runtime) {
		c := openCall(t, i, r, "call-1")
		first, second, third := c.await(callruntime.AwaitOptions{}), c.await(callruntime.AwaitOptions{}), c.await(callruntime.AwaitOptions{})
		for _, step := range []struct {
			item   callruntime.WorkItem
			text   string
			status string
		}{{third, "three", "parked"}, {second, "two", "parked"}, {first, "one", "accepted"}} {
			resp, body := c.answer(step.item, c.says(step.text))
			wantStatus(t, resp, body, 202, fmt.Sprintf(`"status":%q`, step.status))
			_, metrics := call(t, i, "GET", "/metrics")
			if waits := !strings.Contains(metrics, "\ntelapi_callback_oldest_parked_seconds 0\n"); waits != (step.status == "parked") {
				t.Errorf("after %q the metrics tell that something waits: %v", step.text, waits)
			}
		}
		for _, want := range []string{"one", "two", "three"} {
			if e := talk.Receive(t, c.Channel); e.Text != want {
				t.Errorf("received %q, want %q", e.Text, want)
			}
		}
	})
}

// Of simultaneous answers with one token exactly one is routed, on however many
// instances they arrive, and in the order of the work items. The race detector
// watches these few; test/faults posts many.
func TestConcurrentDuplicateCallbacksAreRoutedOnce(t *testing.T) {
	const tokens, tries = 100, 5
	backends(t, func(t *testing.T, env boot.Env) {
		env = talk.WithDataDir(t, env)
		instances := []*boot.Instance{boot.Start(t, env)}
		if env["REDIS_URL"] != "" {
			instances = append(instances, boot.Start(t, boot.Env{"REDIS_URL": env["REDIS_URL"], "DATABASE_URL": env["DATABASE_URL"]}))
		}
		setLimit(t, instances[0], ratelimit.Webhook, 1_000_000, time.Minute)
		for _, i := range instances {
			poll.Until(t, "the new limit is in force", func() bool {
				resp, _ := post(t, i, "/api/v1/webhooks/bot/x", "{}")
				return strings.Contains(resp.Header.Get("RateLimit-Policy"), "q=1000000")
			})
		}
		c := openCall(t, instances[0], talk.StartRuntime(t, env), "call-1")
		items := make(chan callruntime.WorkItem, tokens)
		var routed, duplicates atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for item := range items {
					var twins sync.WaitGroup
					for n := range tries {
						twins.Go(func() {
							resp, body := post(t, instances[n%len(instances)], item.Path, c.says(item.ID), "token", item.Token)
							switch {
							case resp.StatusCode == 202:
								routed.Add(1)
							case resp.StatusCode == 409 && strings.Contains(body, `"duplicate":true`):
								duplicates.Add(1)
							default:
								t.Errorf("got %d %s", resp.StatusCode, body)
							}
						})
					}
					twins.Wait()
				}
			})
		}
		var order []string
		for range tokens {
			item := c.await(callruntime.AwaitOptions{})
			order = append(order, item.ID)
			items <- item
		}
		close(items)
		wg.Wait()
		if routed.Load() != int64(tokens) || duplicates.Load() != int64(tokens*(tries-1)) {
			t.Errorf("%d routed and %d duplicates of %d tokens", routed.Load(), duplicates.Load(), tokens)
		}
		for n, want := range order {
			if e := talk.Receive(t, c.Channel); e.Text != want || e.WorkItemID != want {
				t.Fatalf("entry %d is of %s, want %s", n, e.WorkItemID, want)
			}
		}
	})
}

// A deployment for webhooks alone has no use for its database.
func TestCallbacksWorkWithoutDatabase(t *testing.T) {
	env := boot.Env{"FEATURE_API_ACCESS": "false", "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/none", "DATA_DIR": t.TempDir()}
	i := boot.Start(t, env)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	resp, body := c.answer(c.await(callruntime.AwaitOptions{}), c.says("Hello"))
	wantStatus(t, resp, body, 202, `"accepted"`)
}

func TestCallbackTokenGuessingIsLimited(t *testing.T) {
	env := boot.Env{"DATA_DIR": t.TempDir()}
	i := boot.Start(t, env)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	setLimit(t, i, ratelimit.Auth, 5, time.Hour)
	item := c.await(callruntime.AwaitOptions{})
	poll.Until(t, "guessing ends in 429", func() bool {
		resp, body := post(t, i, item.Path, c.says("x"), "token", "guess")
		return resp.StatusCode == http.StatusTooManyRequests && strings.Contains(body, `"tier":"auth"`)
	})
	resp, body := c.answer(item, c.says("Hello"))
	wantStatus(t, resp, body, 202, `"accepted"`)
}

// What the platform forbids no flow can permit, and nobody is told it could.
func TestPlatformPolicyOverridesFlowPolicy(t *testing.T) {
	env := boot.Env{"DATA_DIR": t.TempDir(), "COMMANDS_DISABLED": "hangup, play_audio", "TRANSFER_ALLOWED_TARGETS": "tel:+4930*"}
	i := boot.Start(t, env)
	own := newTenant(t, i, "own")
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	_, body := c.answer(c.await(callruntime.AwaitOptions{}), `{"conversation":{"identifier":{"id":"call-1"}},"actions":[
		{"type":"hangup"},{"type":"transfer","target":"+49 40 1234"},{"type":"transfer","target":"+49 30 1234"}]}`)
	if !containsAll(body, `{"type":"hangup","decision":"denied","reason":"platform_disabled"}`,
		`{"type":"transfer","decision":"denied","reason":"target_not_allowed"},{"type":"transfer","decision":"allowed"}`) {
		t.Errorf("answered %s", body)
	}
	if _, body := call(t, i, "GET", capabilities, "X-API-Key", own.key); strings.Contains(body, `"type":"play_audio"`) || !strings.Contains(body, `"type":"transfer"`) {
		t.Errorf("capabilities are %s", body)
	}
}
