package channel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

const (
	sessionID = "ses_1"
	messageID = "0198c0de-0000-7000-8000-000000000001"
)

// object returns a valid chat frame, modified by change.
func object(change func(map[string]any)) []byte {
	m := map[string]any{
		"type": "chat", "sessionId": sessionID, "messageId": messageID, "timestamp": 1731641234567, "direction": "to_ari",
		"chat": map[string]any{"text": "hello"},
	}
	if change != nil {
		change(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func set(name string, value any) func(map[string]any) {
	return func(m map[string]any) { m[name] = value }
}

func without(names ...string) func(map[string]any) {
	return func(m map[string]any) {
		for _, n := range names {
			delete(m, n)
		}
	}
}

func TestParseFrameReportsEveryIssue(t *testing.T) {
	const everything = "/messageId /type /sessionId /direction /timestamp"
	for want, frames := range map[string][][]byte{ // paths of issues; none: a good frame
		"": {
			object(nil), object(set("timestamp", 1731641234567.25)), object(set("colour", "red")), object(set("action", map[string]any{"x": 1})),
		},
		"/type":      {object(without("type")), object(set("type", "shout"))},
		"/sessionId": {object(set("sessionId", "ses_2"))},
		"/messageId": {
			object(without("messageId")), object(set("messageId", "42")), object(set("messageId", "{"+messageID+"}")), object(set("messageId", 42)),
			object(set("messageId", strings.Repeat("x", 36))),
		},
		"/timestamp": {
			object(without("timestamp")), object(set("timestamp", "now")), object(set("timestamp", -1)), object(set("timestamp", 1e19)),
			[]byte(strings.Replace(string(object(nil)), "1731641234567", "1e400", 1)),
		},
		"/direction": {object(set("direction", "to_browser"))},
		"/chat": {
			object(without("chat")), object(func(m map[string]any) { delete(m, "chat"); m["status"] = map[string]any{} }), object(set("chat", []int{1})), object(set("chat", nil)),
		},
		everything:  {[]byte(`{}`)},
		"the whole": {[]byte(`[]`), []byte(`null`)},
		"malformed": {
			nil, []byte(`hello`), append(object(nil), object(nil)...), []byte(`{"type":"chat","type":"ping"}`), []byte("{\"type\":\"\xff\"}"),
			object(set("chat", json.RawMessage(strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200)))),
		},
	} {
		for _, frame := range frames {
			m, err := ParseFrame(frame, sessionID)
			got := testkit.IssuePaths(err)
			switch {
			case want == "":
				if err != nil || m.MessageID != messageID || m.Timestamp != 1731641234567 || m.Action != nil || string(m.Chat) != `{"text":"hello"}` {
					t.Errorf("%s: read as %+v, %v", frame, m, err)
				}
			case want == "malformed":
				testkit.WantFault(t, fmt.Sprintf("%.80s", frame), err, fault.MalformedJSON)
			case !fault.Is(err, fault.Validation) || strings.Join(slices.Compact(got), " ") != strings.TrimPrefix(want, "the whole"):
				t.Errorf("%s: error %v with issues at %q, want %q", frame, err, got, want)
			}
		}
	}
}

func TestTimestampBounds(t *testing.T) {
	for timestamp, valid := range map[float64]bool{-1: false, 0: true, 1 << 62: true, 1<<62 + 1<<10: false} {
		m, err := ParseFrame(object(set("timestamp", timestamp)), sessionID)
		if (err == nil) != valid || valid && m.Timestamp != int64(timestamp) {
			t.Errorf("timestamp %f: read as %d (%v)", timestamp, m.Timestamp, err)
		}
	}
}

func TestEveryFrameTypeNeedsItsPayload(t *testing.T) {
	objects := map[wire.MessageType]string{
		"chat": "chat", "browser_action": "browserAction", "action": "action", "action_result": "actionResult", "audio": "audio",
		"status": "status", "control": "control", "reconnect": "reconnect", "error": "error", "ping": "", "pong": "",
	}
	if len(objects) != len(wire.MessageTypes) {
		t.Fatalf("%d types are tried, there are %d", len(objects), len(wire.MessageTypes))
	}
	for kind, name := range objects {
		bare := object(func(m map[string]any) { m["type"] = kind; delete(m, "chat") })
		if _, err := ParseFrame(bare, sessionID); (err == nil) != (name == "") {
			t.Errorf("%s without an object: %v", kind, err)
		}
		if name == "" {
			continue
		}
		if _, err := ParseFrame(object(func(m map[string]any) { m["type"] = kind; delete(m, "chat"); m[name] = map[string]any{} }), sessionID); err != nil {
			t.Errorf("%s with %s: %v", kind, name, err)
		}
	}
}

func TestCursorRoundTrip(t *testing.T) {
	for _, c := range []Cursor{{"abc", "1731641234567-0"}, {"A1", ""}, {"x", "18446744073709551-7"}} {
		if got, ok := parseCursor(c.String()); !ok || got != c {
			t.Errorf("%v became %v, %v", c, got, ok)
		}
	}
	if c, ok := parseCursor(Start); !ok || c != (Cursor{Epoch: anyEpoch}) {
		t.Errorf("%q became %v, %v", Start, c, ok)
	}
	for _, bad := range []string{"", "!", "YWJj", "YWJjLjEtMTIz!", "YWJjLjEtMg==", strings.Repeat("YWJj", 100), "LjEtMQ", "YS4tMQ"} {
		if got, ok := parseCursor(bad); ok {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestTextChatSwitch(t *testing.T) {
	for _, tt := range []struct {
		kind          wire.MessageType
		control, want string
	}{
		{wire.TypeControl, `{"command":"` + wire.EnableTextChat + `"}`, wire.EnableTextChat},
		{wire.TypeControl, `{"command":"` + wire.DisableTextChat + `"}`, wire.DisableTextChat},
		{wire.TypeControl, `{"command":"mute"}`, ""},
		{wire.TypeControl, `{"command":"` + wire.DisableTextChat + `","command":1}`, ""},
		{wire.TypeStatus, `{"command":"` + wire.EnableTextChat + `"}`, ""},
	} {
		testkit.Equal(t, fmt.Sprintf("%s %s", tt.kind, tt.control), (&wire.ChannelMessage{Type: tt.kind, Control: []byte(tt.control)}).TextChatSwitch(), tt.want)
	}
}

func TestCloseCodeRanges(t *testing.T) {
	for code, reason := range reasons {
		if len(reason) > 120 { // what fits into a close frame
			t.Errorf("%d: the reason is too long", code)
		}
		reconnect := strings.Contains(reason, "reconnect") || strings.Contains(reason, "slow down")
		if want := code == CloseRestart || code >= 4000 && code < 4500; reconnect != want {
			t.Errorf("%d says %q", code, reason)
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(object(nil))
	f.Add([]byte(`{"type":"ping"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseFrame(raw, sessionID)
		if err == nil && (m.SessionID != sessionID || !m.Type.Known() || len(m.MessageID) != 36) {
			t.Errorf("%q passed as %+v", raw, m)
		}
		if err == nil {
			if _, err := json.Marshal(fmt.Sprint(m)); err != nil {
				t.Error(err)
			}
			encode(m) // must not panic: it goes on the stream
		}
	})
}

func FuzzParseCursor(f *testing.F) {
	f.Add(Cursor{"abc", "1-1"}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if c, ok := parseCursor(s); ok && c.String() != s {
			t.Errorf("%q was read as %v, which is written %q", s, c, c.String())
		}
	})
}

func TestFrameOutcomes(t *testing.T) {
	for _, c := range []struct {
		outcome Outcome
		err     error
		frame   string
		code    CloseCode
	}{
		{outcome: Appended, frame: `"event":"ack"`},
		{outcome: Duplicate, frame: `"event":"ack"`},
		{outcome: ChatDisabled, frame: `"code":"TEXT_CHAT_DISABLED"`},
		{outcome: Backpressure, frame: `"code":"BACKPRESSURE"`},
		{outcome: NotOwner, code: CloseReplaced},
		{outcome: Expired, code: CloseStoreUnavailable},
		{outcome: Ended, code: CloseEnded},
		{outcome: Lost, code: CloseHistoryLost},
		{err: fault.Unavailable("The store", nil), frame: `"code":"SERVICE_UNAVAILABLE"`, code: CloseStoreUnavailable},
	} {
		m := &memory{outcome: c.outcome, err: c.err, complete: true}
		conn, w := openConnection(t, m, "")
		conn.Start(w)
		handle(t, conn, object(nil))
		last := w.frames[len(w.frames)-1]
		if !strings.Contains(last, c.frame) || w.code != c.code || (c.frame != "" && !strings.Contains(last, messageID)) {
			t.Errorf("%s %v: got %s and %d, want %s and %d", c.outcome, c.err, last, w.code, c.frame, c.code)
		}
	}
}

func TestBatchIsAppendedAndAcknowledgedInOrder(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	for n := range maxBatch + 1 {
		c.Handle(t.Context(), object(nil))
		testkit.Equal(t, fmt.Sprintf("appended frames after %d", n+1), len(m.appended), (n+1)/maxBatch*maxBatch)
	}
	c.Flush(t.Context())
	m.appended, m.calls = nil, 0
	var batch [][]byte
	for n := range 3 {
		batch = append(batch, object(set("messageId", fmt.Sprintf("00000000-0000-0000-0000-%012d", n))))
	}
	handle(t, c, append(batch, []byte(`{}`))...)
	if len(m.appended) != 3 || m.calls != 1 {
		t.Errorf("appended %d in %d calls", len(m.appended), m.calls)
	}
	frames := strings.Join(w.frames[1:], "\n")
	for n := range 3 {
		if want := fmt.Sprintf(`"status":{"event":"ack","messageId":"00000000-0000-0000-0000-%012d"}`, n); !strings.Contains(w.frames[len(w.frames)-4+n], want) {
			t.Errorf("%s is out of order in %s", want, frames)
		}
	}
	if last := w.frames[len(w.frames)-1]; !strings.Contains(last, `"type":"error"`) {
		t.Errorf("the error for the last frame is not last in %s", frames)
	}
	c.Flush(t.Context())
	if m.calls != 1 {
		t.Error("the batch was appended again")
	}
}

func TestFrameEntryMatchesEncoder(t *testing.T) {
	c, _ := openConnection(t, &memory{complete: true}, "")
	now := time.UnixMilli(1700000000123)
	c.service.now = func() time.Time { return now }
	for i, kind := range slices.Concat(wire.MessageTypes, wire.MessageTypes) {
		if i == len(wire.MessageTypes) { // the second half is traced
			c.handshake = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
		}
		m := wire.ChannelMessage{Type: kind, SessionID: sessionID, MessageID: messageID, Timestamp: 17, Direction: wire.ToRuntime, Trace: c.trace()}
		payload, _ := m.Payload()
		if payload == nil {
			if got, want := string(m.Append(nil)), string(encode(m)); got != want {
				t.Errorf("%s, not %s", got, want)
			}
			continue
		}
		*payload = []byte(`{"text":"a \"quoted\" ü"}`)
		if got, want := string(c.frameEntry(&m, now, traceMember(c.trace()))), string(c.entry(wire.Entry{Kind: wire.KindFrame, Message: &m})); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func TestErrorFrameDescribesIssues(t *testing.T) {
	for frame, want := range map[string]string{
		`{"type":chat}`:                 `"code":"MALFORMED_JSON","message":"Invalid JSON: syntax error at byte 8."`,
		string(object(without("type"))): `"message":"/type: type must be one of`,
		`{}`:                            `"message":"The frame has 5 issues. See the member issues.","fatal":false,"issues":[{"path":"/messageId"`,
	} {
		c, w := openConnection(t, &memory{complete: true}, "")
		c.Start(w)
		handle(t, c, []byte(frame))
		testkit.Contains(t, frame, w.frames[len(w.frames)-1], want)
	}
}

func TestPings(t *testing.T) {
	m := &memory{complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	for _, kind := range []string{"ping", "pong"} {
		handle(t, c, object(set("type", kind)))
	}
	if len(w.frames) != 2 || !strings.Contains(w.frames[1], `"type":"pong"`) || len(m.appended) > 0 {
		t.Errorf("frames %q, appended %+v; want ready and a pong", w.frames, m.appended)
	}
}

func TestTenthInvalidFrameInARowClosesSocket(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "")
	c.Start(w)
	for range 9 {
		handle(t, c, []byte(`{}`))
	}
	handle(t, c, object(nil)) // a valid frame resets the count
	for range 9 {
		handle(t, c, []byte(`{}`))
	}
	if w.code != 0 {
		t.Fatalf("closed with %d", w.code)
	}
	c.HandleBinary(t.Context())
	testkit.Equal(t, "close code", w.code, CloseInvalidFrames)
	all := strings.Join(w.frames, "")
	if strings.Count(all, `"fatal":false`) != 18 || strings.Count(all, `"fatal":true`) != 1 || !strings.Contains(w.frames[len(w.frames)-1], `"fatal":true`) {
		t.Errorf("want 18 errors and then a fatal one: %s", all)
	}
}

func TestAcknowledgedBrowserActionsAreRecorded(t *testing.T) {
	action := object(func(m map[string]any) { m["type"] = "browser_action"; m["browserAction"] = map[string]any{} })
	for outcome, want := range map[Outcome]int{Appended: 1, Duplicate: 1, Backpressure: 0} {
		m := &memory{outcome: outcome, complete: true}
		c, w := openConnection(t, m, "")
		c.Start(w)
		handle(t, c, action)
		handle(t, c, object(nil))
		if len(m.actions) != want {
			t.Errorf("%s: recorded %v", outcome, m.actions)
		}
		if m.appended[0].Chat || !m.appended[1].Chat {
			t.Errorf("appended %+v, want a browser action and chat", m.appended)
		}
	}
}

func TestFramesAboveRateCloseSocket(t *testing.T) {
	audio := object(func(m map[string]any) { m["type"], m["audio"] = "audio", map[string]any{"data": ""} })
	for name, oneMore := range map[string]func(*Connection){
		"valid":         func(c *Connection) { c.Handle(t.Context(), object(nil)) },
		"invalid":       func(c *Connection) { c.Handle(t.Context(), []byte(`{}`)) },
		"invalid audio": func(c *Connection) { c.Handle(t.Context(), object(set("type", "audio"))) },
		"binary":        func(c *Connection) { c.HandleBinary(t.Context()) },
	} {
		c, w := openConnection(t, &memory{outcome: Appended, complete: true}, "") // limited to 1,000 frames a second
		c.Start(w)
		now := time.Now()
		c.service.now = func() time.Time { return now }
		for range 1000 {
			c.Handle(t.Context(), object(nil))
		}
		c.Handle(t.Context(), audio) // has a limit of its own
		testkit.Equal(t, name+": close code within the limit", w.code, 0)
		oneMore(c)
		testkit.Equal(t, name+": close code", w.code, CloseRateLimited)
		testkit.Equal(t, name+": acknowledged frames", strings.Count(strings.Join(w.frames, ""), `"event":"ack"`), 1000)
	}
}

func TestAudioAboveRateIsDropped(t *testing.T) {
	m := &memory{outcome: Appended, complete: true}
	c, w := openConnection(t, m, "") // limited to 1,000 bytes a second
	c.Start(w)
	now := time.Now()
	c.service.now = func() time.Time { return now }
	frame := object(func(m map[string]any) {
		m["type"], m["audio"] = "audio", map[string]any{"data": ""}
	})
	frame = bytes.Replace(frame, []byte(`"data":""`), fmt.Appendf(nil, `"data":%q`, strings.Repeat("x", 250-len(frame))), 1)
	for _, step := range []struct {
		after      time.Duration
		sent, want int
	}{{0, 6, 4}, {249 * time.Millisecond, 3, 0}, {time.Millisecond, 3, 1}, {time.Hour, 9, 4}} {
		now = now.Add(step.after)
		before := m.audio
		for range step.sent {
			handle(t, c, frame)
		}
		if got := m.audio - before; got != step.want {
			t.Errorf("after %v, %d of %d audio frames were forwarded, want %d", step.after, got, step.sent, step.want)
		}
	}
	testkit.Equal(t, "audio frames were counted as dropped", testkit.MetricValue(t, c.service.metrics.audioDropped), 12)
	handle(t, c, object(nil)) // other frames have their own limit
	if len(w.frames) != 2 || len(m.appended) != 1 || w.code != 0 {
		t.Errorf("frames %v, appended %d, closed with %d; want ready and an acknowledgement", w.frames, len(m.appended), w.code)
	}
}
