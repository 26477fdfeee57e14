package e2e

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// span is an exported span with its attributes as texts.
type span struct {
	*tracepb.Span
	id, parent string
	attributes map[string]string
}

// findSpan returns the only span of a trace with this name.
func findSpan(t *testing.T, spans []*tracepb.Span, name string) (found span) {
	t.Helper()
	for _, s := range spans {
		if s.GetName() != name {
			continue
		}
		if found.Span != nil {
			t.Fatalf("two spans %q", name)
		}
		found = span{s, hex.EncodeToString(s.GetSpanId()), hex.EncodeToString(s.GetParentSpanId()), map[string]string{}}
		for _, a := range s.GetAttributes() {
			found.attributes[a.GetKey()] = a.GetValue().GetStringValue()
		}
	}
	if found.Span == nil {
		t.Fatalf("no span %q", name)
	}
	return found
}

// The trace of a team's server continues through the token request, the socket, a
// frame, the runtime, the callback, and the message to the browser.
func TestTraceCoversWholeConversation(t *testing.T) {
	t.Parallel()
	collector := harness.StartCollector(t)
	env := harness.Merge(collector.Env(), harness.Env{"DATA_DIR": t.TempDir()})
	i, tenant := startTenant(t, env)
	const traceID, serverSpan = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

	resp, body := i.Post(t, "/api/v1/sessions/token", `{"endpointId":"`+tenant.Endpoint.ID+`","mode":"chat"}`,
		"X-API-Key", tenant.Key, "traceparent", "00-"+traceID+"-"+serverSpan+"-01")
	wantStatus(t, resp, body, 201, "sessionId")
	var issued struct{ SessionID, Token string }
	testkit.Must(t, json.Unmarshal([]byte(body), &issued))
	session, token := issued.SessionID, issued.Token
	runtime := harness.StartRuntime(t, i)
	browser := harness.Connect(t, i, session, token, "")
	browser.Expect("ready")
	call := harness.Accept(t, runtime)
	browser.Chat("hello")
	browser.Expect("ack")

	connected := harness.Receive(t, call)
	frame := harness.Receive(t, call)
	if frame.Kind != wire.KindFrame || call.Session.Trace != connected.Trace {
		t.Fatalf("offer %+v, first entry %+v, second entry %+v; want a session entry with the trace of the offer, and a frame", call.Session, connected, frame)
	}
	item, err := call.Await(t.Context(), wire.Await{Trace: frame.Trace})
	testkit.Must(t, err)
	answer := fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"Hi"}}}]},"actions":[{"type":"hangup"}]}`, session)
	expectStatus(t, 202, "accepted")(i.Post(t, harness.Path(item), answer, "token", item.Token))
	callback := harness.Receive(t, call)
	testkit.Must(t, call.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"Hi"}`), Trace: callback.Trace}))
	message := browser.Expect(`"text":"Hi"`)
	for range 3 { // probes make no spans
		i.Call(t, "GET", "/health")
		i.Call(t, "GET", "/metrics")
	}
	testkit.Must(t, i.Stop())

	var spans []*tracepb.Span
	for _, s := range collector.Spans() {
		if hex.EncodeToString(s.GetTraceId()) == traceID {
			spans = append(spans, s)
		}
		if name := s.GetName(); strings.Contains(name, "/health") || strings.Contains(name, "/metrics") {
			t.Errorf("span %q of a probe", name)
		}
	}
	parent := serverSpan
	for _, name := range []string{"POST /api/v1/sessions/token", "GET /ws/session", "frame chat", "POST /api/v1/webhooks/bot/{channelId}", "message chat"} {
		s := findSpan(t, spans, name)
		if s.parent != parent || s.attributes["telapi.team_id"] != tenant.Team.ID {
			t.Errorf("span %q: parent %s, attributes %v; want parent %s and team %s", name, s.parent, s.attributes, parent, tenant.Team.ID)
		}
		parent = s.id
	}
	webhook := findSpan(t, spans, "POST /api/v1/webhooks/bot/{channelId}")
	for _, name := range []string{"parse", "policy", "store"} {
		if s := findSpan(t, spans, name); s.parent != webhook.id {
			t.Errorf("span %q: parent %s, want the callback's span %s", name, s.parent, webhook.id)
		}
	}
	if events := webhook.GetEvents(); len(events) != 1 || !strings.Contains(fmt.Sprint(events[0]), "hangup") || !strings.Contains(fmt.Sprint(events[0]), "source_not_allowed") {
		t.Errorf("events of the callback: %v, want the decision on the hangup", events)
	}
	for what, got := range map[string]wire.Trace{
		"offer":    call.Session.Trace,
		"frame":    frame.Trace,
		"callback": callback.Trace,
	} {
		want := map[string]string{"offer": "GET /ws/session", "frame": "frame chat", "callback": "POST /api/v1/webhooks/bot/{channelId}"}[what]
		if s := findSpan(t, spans, want); got.TraceID != traceID || got.ParentSpanID != s.id {
			t.Errorf("trace of the %s: %+v, want the span %q (%s)", what, got, want, s.id)
		}
	}
	if want := `"trace":{"traceId":"` + traceID + `","parentSpanId":"` + webhook.id; !strings.Contains(message.Raw, want) {
		t.Errorf("message to the browser %s, want %s in it", message.Raw, want)
	}
}

// A browser can name its own span, and invalid traces are ignored.
func TestFrameJoinsTraceOfBrowser(t *testing.T) {
	t.Parallel()
	collector := harness.StartCollector(t)
	env := harness.Merge(collector.Env(), harness.Env{"DATA_DIR": t.TempDir()})
	i, tenant := startTenant(t, env)
	session, browser := openSession(t, i, tenant)
	call := harness.Accept(t, harness.StartRuntime(t, i))
	own := harness.Receive(t, call).Trace.TraceID
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for n, tt := range []struct{ trace, want string }{
		{`{"traceId":"` + traceID + `","parentSpanId":"` + spanID + `"}`, traceID},
		{`{"traceId":"` + traceID + `"}`, own},
		{`{"traceId":"zz","parentSpanId":"` + spanID + `"}`, own},
		{`{"traceId":5}`, own},
		{`"x"`, own},
		{`null`, own},
	} {
		frame := harness.Frame("chat", session, fmt.Sprintf("0198c0de-0000-7000-8000-00000000000%d", n), "chat", `{"text":"hi"}`)
		// Not with Write, which checks frames against the contract.
		testkit.Must(t, browser.Conn.WriteMessage(websocket.TextMessage, []byte(strings.Replace(frame, `"type"`, `"trace":`+tt.trace+`,"type"`, 1))))
		got := harness.Receive(t, call)
		if got.Trace.TraceID != tt.want || got.Trace.ParentSpanID == spanID || len(got.Trace.ParentSpanID) != 16 {
			t.Errorf("trace %s: entry has %+v, want a span of the service in trace %s", tt.trace, got.Trace, tt.want)
		}
	}
	testkit.Must(t, i.Stop())
	found := false
	for _, s := range collector.Spans() {
		found = found || hex.EncodeToString(s.GetTraceId()) == traceID && hex.EncodeToString(s.GetParentSpanId()) == spanID && s.GetName() == "frame chat"
	}
	if !found {
		t.Error("no span of a frame below the browser's span")
	}
}

// Without export, the trace of the caller is passed on, to speech providers too.
func TestTraceIsPassedOnWithoutExport(t *testing.T) {
	traceparents := make(chan string, 1)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		traceparents <- r.Header.Get("traceparent")
		w.WriteHeader(http.StatusBadRequest)
	}))
	t.Cleanup(provider.Close)
	i := harness.Start(t, harness.Env{"SPEECH_PROVIDERS": "openai", "SPEECH_OPENAI_URL": provider.URL})
	const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	i.Post(t, speechPath, `{"text":"hi"}`, "X-API-Key", harness.NewTenant(t, i, "tenant").Key, "traceparent", traceparent)
	testkit.Equal(t, "traceparent of the provider", <-traceparents, traceparent)
}
