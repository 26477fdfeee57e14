package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/talk"
)

// collector gathers what an instance exports.
type collector struct {
	mu  sync.Mutex
	all strings.Builder
	URL string
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all.WriteString(r.URL.Path + "\n")
		c.all.Write(body)
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *collector) exported() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.String()
}

func TestCallbackJoinsCallTrace(t *testing.T) {
	spans := newCollector(t)
	env := boot.Env{"DATA_DIR": t.TempDir(), "OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": spans.URL}
	i := boot.Start(t, env)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	const (
		inQuery, querySpan   = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		inHeader, headerSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
		transaction          = "0b4d5c1e-54a2-4b8e-8d4b-6f0f3b6f0a01"
	)
	traceparent := "00-" + inHeader + "-" + headerSpan + "-01"
	for _, row := range []struct {
		query                string
		headers              []string
		traceID, parent, tx  string
		callID, exportedSpan string
	}{
		{"?traceId=" + inQuery + "&parentSpanId=" + querySpan + "&callId=leg-1", []string{"bot-trace-transaction-id", transaction}, inQuery, querySpan, transaction, "leg-1", querySpan},
		{"", []string{"traceparent", traceparent}, inHeader, "", c.TransactionID, c.CallID, headerSpan},
		{"?traceId=our%20own&parentSpanId=a&parentSpanId=b&callId=" + strings.Repeat("x", 129), []string{"bot-trace-transaction-id", "no uuid"}, "", "", c.TransactionID, c.CallID, ""},
		{"?traceId=our-own-17", nil, "our-own-17", "", c.TransactionID, c.CallID, ""},
	} {
		item := c.await(callruntime.AwaitOptions{})
		resp, body := post(t, i, item.Path+row.query, c.says("x"), append(row.headers, "token", item.Token)...)
		wantStatus(t, resp, body, 202, "accepted")
		got := talk.Receive(t, c.Channel).Trace
		if row.traceID != "" && got.TraceID != row.traceID || row.parent != "" && got.ParentSpanID != row.parent || got.TransactionID != row.tx || got.CallID != row.callID {
			t.Errorf("%s %v: entries carry %+v", row.query, row.headers, got)
		}
		if row.traceID == "" && len(got.TraceID) != 32 {
			t.Errorf("%s: entries are in no trace: %+v", row.query, got)
		}
	}
	if err := i.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{inQuery, querySpan, inHeader, headerSpan} {
		raw, err := hex.DecodeString(id)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(spans.exported(), string(raw)) {
			t.Errorf("no span has to do with %s", id)
		}
	}
	for _, value := range []string{"telapi.callback_id", "telapi.call_id", transaction} {
		if !strings.Contains(spans.exported(), value) {
			t.Errorf("no span says %s", value)
		}
	}
}

// A callback's token and what people said leave in nothing that is written
// about it, and the store never sees the token.
func TestCallbackTokensAndTextsAreNotLeaked(t *testing.T) {
	out := newCollector(t)
	env := boot.Env{"DATA_DIR": t.TempDir(), "LOG_LEVEL": "debug", "OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": out.URL}
	i := boot.Start(t, env)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	const said, sensitive = "what-was-said-4711", "iban-swordfish-99"
	body := fmt.Sprintf(`{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]},
		"channelData":[{"key":"iban","value":%q,"sensitiveData":true}],"actions":[{"type":"made_up"},{"type":"transfer","target":"tel:+1900555"}]}`, said, sensitive)
	items := []callruntime.WorkItem{c.await(callruntime.AwaitOptions{}), c.await(callruntime.AwaitOptions{}), c.await(callruntime.AwaitOptions{Kind: wire.LLMItem})}
	answers := ""
	for _, item := range []callruntime.WorkItem{items[1], items[0], items[0], items[2]} {
		for _, path := range []string{"/api/v1/webhooks/bot/" + item.Token, "/api/v1/webhooks/llm/call-1/" + item.Token, item.Path + "?token=" + item.Token} {
			for _, b := range []string{body, body[:100], strings.Replace(body, "call-1", "call-2", 1)} {
				_, answer := post(t, i, path, b, "token", "Bearer "+item.Token)
				answers += answer
				_, answer = post(t, i, path, b, "token", item.Token, "X-Request-Id", item.Token, "User-Agent", item.Token)
				answers += answer
			}
		}
	}
	if !strings.Contains(answers, `"status":"accepted"`) || !strings.Contains(answers, `"duplicate":true`) {
		t.Fatalf("too little happened: %s", answers)
	}
	kept := storeContents(t, env)
	if !strings.Contains(kept, said) {
		t.Fatal("the store was not looked at")
	}
	_, metrics := call(t, i, "GET", "/metrics")
	for _, name := range []string{`telapi_callbacks_total{kind="bot",outcome="accepted"}`, `outcome="CALLBACK_TOKEN_INVALID"`, `telapi_commands_total{decision="denied",type="other"}`, "telapi_callback_seconds_bucket"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	if err := i.Stop(); err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"log": i.Log.String(), "export": out.exported(), "metrics": metrics, "answers": answers, "store": kept} {
		for n, item := range items {
			if at := strings.Index(text, item.Token); at >= 0 {
				t.Errorf("%s holds token %d: …%.200q", where, n, text[max(0, at-100):])
			}
		}
		if where != "store" && (strings.Contains(text, said) || strings.Contains(text, sensitive)) {
			t.Errorf("%s holds what was said", where)
		}
	}
}

// storeContents is everything in the embedded store: names and values.
func storeContents(t *testing.T, env boot.Env) string {
	t.Helper()
	where, err := callruntime.Locate("", env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	where.DisableCache = true
	client, err := rueidis.NewClient(where)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	names, err := client.Do(t.Context(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(names, "\n")
	for _, name := range names {
		for _, cmd := range []rueidis.Completed{
			client.B().Get().Key(name).Build(), client.B().Hgetall().Key(name).Build(),
			client.B().Xrange().Key(name).Start("-").End("+").Build(), client.B().Zrange().Key(name).Min("0").Max("-1").Build(),
		} {
			if value, err := client.Do(t.Context(), cmd).ToAny(); err == nil {
				all += fmt.Sprintf("\n%v", value)
			}
		}
	}
	return all
}

// Callbacks only ever come in: nothing that a body names is fetched or told,
// neither when it is taken nor when the conversation ends.
func TestCallbackSendsNoOutboundRequests(t *testing.T) {
	var asked sync.Map
	trap := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked.Store(r.URL.String(), true) }))
	defer trap.Close()
	t.Setenv("HTTP_PROXY", trap.URL)
	t.Setenv("HTTPS_PROXY", trap.URL)
	env := boot.Env{"DATA_DIR": t.TempDir()}
	i := boot.Start(t, env)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	u := trap.URL + "/x"
	body := fmt.Sprintf(`{"conversation":{"identifier":{"id":"call-1"}},"callbackUrl":%[1]q,"from":{"avatar":%[1]q},
		"messages":{"message":[{"content":{"textMessage":{"textHtml":"<p>Hi<img src='%[1]s'><script src='%[1]s'></script></p>"},"voiceMessage":%[1]q}}]},
		"metadata":{"webhook":%[1]q},"channelData":[{"key":"url","value":%[1]q}],"nluData":%[1]q,"actions":[{"type":"play_audio","url":%[1]q},{"type":"hangup"}]}`, u)
	resp, answer := c.answer(c.await(callruntime.AwaitOptions{}), body, "Referer", u, "Origin", u)
	wantStatus(t, resp, answer, 202, "accepted")
	if err := c.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	for e := talk.Receive(t, c.Channel); e.Kind != "channel_ended"; e = talk.Receive(t, c.Channel) {
	}
	time.Sleep(200 * time.Millisecond) // long enough for something that should not happen
	asked.Range(func(u, _ any) bool { t.Errorf("%s was asked for", u); return true })
}
