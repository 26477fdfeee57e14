package channel

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
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
	for name, c := range map[string]struct {
		frame []byte
		paths []string // of the issues; none: a good frame
		code  fault.Code
	}{
		"a good frame":              {frame: object(nil)},
		"a fractional timestamp":    {frame: object(set("timestamp", 1731641234567.25))},
		"an unknown member":         {frame: object(set("colour", "red"))},
		"a second payload object":   {frame: object(set("action", map[string]any{"x": 1}))},
		"no type":                   {object(without("type")), []string{"/type"}, fault.Validation},
		"an unknown type":           {object(set("type", "shout")), []string{"/type"}, fault.Validation},
		"another session":           {object(set("sessionId", "ses_2")), []string{"/sessionId"}, fault.Validation},
		"no message id":             {object(without("messageId")), []string{"/messageId"}, fault.Validation},
		"an invalid message ID":     {object(set("messageId", "42")), []string{"/messageId"}, fault.Validation},
		"a braced uuid":             {object(set("messageId", "{"+messageID+"}")), []string{"/messageId"}, fault.Validation},
		"a number as message id":    {object(set("messageId", 42)), []string{"/messageId"}, fault.Validation},
		"no timestamp":              {object(without("timestamp")), []string{"/timestamp"}, fault.Validation},
		"a timestamp in words":      {object(set("timestamp", "now")), []string{"/timestamp"}, fault.Validation},
		"a negative timestamp":      {object(set("timestamp", -1)), []string{"/timestamp"}, fault.Validation},
		"the other direction":       {object(set("direction", "to_browser")), []string{"/direction"}, fault.Validation},
		"no payload":                {object(without("chat")), []string{"/chat"}, fault.Validation},
		"another type's payload":    {object(func(m map[string]any) { delete(m, "chat"); m["status"] = map[string]any{} }), []string{"/chat"}, fault.Validation},
		"a payload that is a list":  {object(set("chat", []int{1})), []string{"/chat"}, fault.Validation},
		"a payload that is null":    {object(set("chat", nil)), []string{"/chat"}, fault.Validation},
		"everything wrong at once":  {[]byte(`{}`), []string{"/messageId", "/type", "/sessionId", "/direction", "/timestamp"}, fault.Validation},
		"a list":                    {[]byte(`[]`), []string{""}, fault.Validation},
		"null":                      {[]byte(`null`), []string{""}, fault.Validation},
		"36 letters as message ID":  {object(set("messageId", strings.Repeat("x", 36))), []string{"/messageId"}, fault.Validation},
		"a timestamp beyond 63 bit": {object(set("timestamp", 1e19)), []string{"/timestamp"}, fault.Validation},
		"nothing":                   {nil, nil, fault.MalformedJSON},
		"not JSON":                  {[]byte(`hello`), nil, fault.MalformedJSON},
		"two values":                {append(object(nil), object(nil)...), nil, fault.MalformedJSON},
		"a name twice":              {[]byte(`{"type":"chat","type":"ping"}`), nil, fault.MalformedJSON},
		"invalid UTF-8":             {[]byte("{\"type\":\"\xff\"}"), nil, fault.MalformedJSON},
		"nested without an end":     {object(set("chat", json.RawMessage(strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200)))), nil, fault.MalformedJSON},
		"a timestamp beyond number": {[]byte(strings.Replace(string(object(nil)), "1731641234567", "1e400", 1)), []string{"/timestamp"}, fault.Validation},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ParseFrame(c.frame, sessionID)
			if c.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if m.MessageID != messageID || m.Timestamp != 1731641234567 || m.Action != nil || string(m.Chat) != `{"text":"hello"}` {
					t.Errorf("read as %+v", m)
				}
				return
			}
			if !fault.Is(err, c.code) {
				t.Fatalf("got %v, want %s", err, c.code)
			}
			issues, _ := fault.From(err).Details.([]fault.Issue)
			var got []string
			for _, i := range issues {
				got = append(got, i.Path)
			}
			for _, path := range c.paths {
				if !slices.Contains(got, path) {
					t.Errorf("no issue at %q in %q", path, got)
				}
			}
		})
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
		if got, ok := ParseCursor(c.String()); !ok || got != c {
			t.Errorf("%v became %v, %v", c, got, ok)
		}
	}
	if c, ok := ParseCursor(Start); !ok || c != (Cursor{Epoch: anyEpoch}) {
		t.Errorf("%q became %v, %v", Start, c, ok)
	}
	for _, bad := range []string{"", "!", "YWJj", "YWJjLjEtMTIz!", "YWJjLjEtMg==", strings.Repeat("YWJj", 100), "LjEtMQ", "YS4tMQ"} {
		if got, ok := ParseCursor(bad); ok {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestStreamIDIsInserted(t *testing.T) {
	id := at(1).String()
	for message, want := range map[string]string{`{}`: `{"streamId":"` + id + `"}`, `{"a":1}`: `{"streamId":"` + id + `","a":1}`} {
		if got := string(withStreamID(Message{Cursor: at(1), JSON: []byte(message)})); got != want {
			t.Errorf("%s became %s, want %s", message, got, want)
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
		if got := textChatSwitch(wire.ChannelMessage{Type: tt.kind, Control: []byte(tt.control)}); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.control, got, tt.want)
		}
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
		if c, ok := ParseCursor(s); ok && c.String() != s {
			t.Errorf("%q was read as %v, which is written %q", s, c, c.String())
		}
	})
}
