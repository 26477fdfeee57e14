package e2e

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestCallbackJoinsCallTrace(t *testing.T) {
	spans := harness.StartCollector(t)
	env := harness.Merge(spans.Env(), harness.Env{"DATA_DIR": t.TempDir()})
	i := harness.Start(t, env)
	c := openCall(t, i, harness.StartRuntime(t, i), "call-1")
	const (
		inQuery, querySpan   = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		inHeader, headerSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
		transaction          = "0b4d5c1e-54a2-4b8e-8d4b-6f0f3b6f0a01"
	)
	traceparent := "00-" + inHeader + "-" + headerSpan + "-01"
	for _, row := range []struct {
		query               string
		headers             []string
		traceID             string // of the entry; empty: any
		transaction, callID string // of the entry
	}{
		{"?traceId=" + inQuery + "&parentSpanId=" + querySpan + "&callId=leg-1", []string{"bot-trace-transaction-id", transaction}, inQuery, transaction, "leg-1"},
		{"", []string{"traceparent", traceparent}, inHeader, c.TransactionID, c.CallID},
		{"?traceId=our%20own&parentSpanId=a&parentSpanId=b&callId=" + strings.Repeat("x", 129), []string{"bot-trace-transaction-id", "not a UUID"}, "", c.TransactionID, c.CallID},
		{"?traceId=our-own-17", nil, "our-own-17", c.TransactionID, c.CallID},
	} {
		item := c.await(wire.Await{})
		expectStatus(t, 202, "accepted")(i.Post(t, harness.Path(item)+row.query, c.botMessage("x"), append(row.headers, "token", item.Token)...))
		got := harness.Receive(t, c.Channel).Trace
		if row.traceID != "" && got.TraceID != row.traceID || got.TransactionID != row.transaction || got.CallID != row.callID {
			t.Errorf("%s %v: trace of the entry is %+v, want %+v", row.query, row.headers, got, row)
		}
		if got.ParentSpanID == querySpan || got.ParentSpanID == headerSpan {
			t.Errorf("%s %v: the entry names the caller's span %s, want that of the service", row.query, row.headers, got.ParentSpanID)
		}
		if row.traceID == "" && len(got.TraceID) != 32 {
			t.Errorf("%s: trace of the entry is %+v, want a new trace ID", row.query, got)
		}
	}
	testkit.Must(t, i.Stop())
	for _, id := range []string{inQuery, querySpan, inHeader, headerSpan} {
		raw, err := hex.DecodeString(id)
		testkit.Must(t, err)
		if !strings.Contains(spans.String(), string(raw)) {
			t.Errorf("no exported span refers to %s", id)
		}
	}
	testkit.Contains(t, "export", spans.String(), "telapi.callback_id", "telapi.call_id", transaction)
}

// Callback tokens and message texts do not appear in logs, metrics, traces or
// responses, and tokens are not stored.
func TestCallbackTokensAndTextsAreNotLeaked(t *testing.T) {
	collector := harness.StartCollector(t)
	env := harness.Merge(collector.Env(), harness.Env{"DATA_DIR": t.TempDir(), "LOG_LEVEL": "debug"})
	i := harness.Start(t, env)
	c := openCall(t, i, harness.StartRuntime(t, i), "call-1")
	const text, sensitive = "message-text-4711", "iban-swordfish-99"
	body := fmt.Sprintf(`{"conversation":{"identifier":{"id":"call-1"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":%q}}}]},
		"channelData":[{"key":"iban","value":%q,"sensitiveData":true}],"actions":[{"type":"unknown"},{"type":"transfer","target":"tel:+1900555"}]}`, text, sensitive)
	items := []wire.Awaited{c.await(wire.Await{}), c.await(wire.Await{}), c.await(wire.Await{Kind: wire.LLMItem})}
	responses := ""
	for _, item := range []wire.Awaited{items[1], items[0], items[0], items[2]} {
		for _, path := range []string{"/api/v1/webhooks/bot/" + item.Token, "/api/v1/webhooks/llm/call-1/" + item.Token, harness.Path(item) + "?token=" + item.Token} {
			for _, b := range []string{body, body[:100], strings.Replace(body, "call-1", "call-2", 1)} {
				_, response := i.Post(t, path, b, "token", "Bearer "+item.Token)
				responses += response
				_, response = i.Post(t, path, b, "token", item.Token, "X-Request-Id", item.Token, "User-Agent", item.Token)
				responses += response
			}
		}
	}
	if !strings.Contains(responses, `"status":"accepted"`) || !strings.Contains(responses, `"duplicate":true`) {
		t.Fatalf("responses are %s, want an accepted and a duplicate callback", responses)
	}
	stored := dumpStore(t, env)
	if !strings.Contains(stored, text) {
		t.Fatal("the text is not in the store: the test reads the wrong store")
	}
	_, metrics := i.Call(t, "GET", "/metrics")
	testkit.Contains(t, "metrics", metrics, `telapi_callbacks_total{kind="bot",outcome="accepted"}`, `outcome="CALLBACK_TOKEN_INVALID"`, `telapi_commands_total{decision="denied",type="other"}`, "telapi_callback_seconds_bucket")
	testkit.Must(t, i.Stop())
	texts := map[string]string{"log": i.Log.String(), "export": collector.String(), "metrics": metrics, "responses": responses}
	wantNotLeaked(t, texts, map[string]string{"text": text, "sensitive data": sensitive})
	texts["store"] = stored
	wantNotLeaked(t, texts, map[string]string{"first token": items[0].Token, "second token": items[1].Token, "token of a model": items[2].Token})
}

// dumpStore returns the keys and values of the embedded store.
func dumpStore(t *testing.T, env harness.Env) string {
	t.Helper()
	client := harness.StoreClient(t, env)
	names, err := client.Do(t.Context(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	testkit.Must(t, err)
	dump := strings.Join(names, "\n")
	for _, name := range names {
		for _, cmd := range []rueidis.Completed{
			client.B().Get().Key(name).Build(), client.B().Hgetall().Key(name).Build(),
			client.B().Xrange().Key(name).Start("-").End("+").Build(), client.B().Zrange().Key(name).Min("0").Max("-1").Build(),
		} {
			if value, err := client.Do(t.Context(), cmd).ToAny(); err == nil {
				dump += fmt.Sprintf("\n%v", value)
			}
		}
	}
	return dump
}
