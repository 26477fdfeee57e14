package wire

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func TestTraceOfMessageIsEscaped(t *testing.T) {
	m := ChannelMessage{Type: TypeChat, SessionID: "s", MessageID: "m", Direction: ToBrowser, Trace: Trace{TraceID: "a\"b\u2028", TransactionID: "t"}, Chat: jsontext.Value(`{}`)}
	want, err := json.Marshal(m)
	if got := m.Append(nil); err != nil || string(got) != string(want) {
		t.Errorf("got  %s\nwant %s (%v)", got, want, err)
	}
	m.Trace.TraceID = "\xff" // not UTF-8
	if got := string(m.Append(nil)); strings.Contains(got, "trace") || !jsontext.Value(got).IsValid() {
		t.Errorf("invalid trace is encoded as %s, want it omitted", got)
	}
}

func TestTraceQuery(t *testing.T) {
	for want, trace := range map[string]Trace{
		"":                             {TransactionID: "t"},
		"?parentSpanId=s&traceId=t":    {TraceID: "t", ParentSpanID: "s"},
		"?callId=a%26b%3D+c&traceId=t": {TraceID: "t", CallID: "a&b= c"},
	} {
		if got := trace.Query(); got != want {
			t.Errorf("%+v: query %q, want %q", trace, got, want)
		}
	}
}

func TestUnknownCommandIsDecoded(t *testing.T) {
	var e Entry
	decode(t, `{"kind":"command_denied","channelId":"c","at":1,"command":{"type":"levitate","source":"bot","commandId":"9","height":3},"reason":"unknown_action"}`, &e)
	other, ok := e.Command.Command.(*OtherCommand)
	if !ok || other.Type != "levitate" || other.CommandID != "9" {
		t.Errorf("decoded as %#v", e.Command.Command)
	}
	for _, bad := range []string{`{"command":5}`, `{"command":{"type":"hangup","reason":7}}`} {
		if err := json.Unmarshal([]byte(bad), &e); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestNameValuesKeepForm(t *testing.T) {
	for _, form := range []string{`{"b":"1","a":"2"}`, `[{"name":"a","value":"1"},{"name":"a","value":""}]`, `{}`} {
		var n NameValues
		decode(t, form, &n)
		if got, err := json.Marshal(n); err != nil || string(got) != form {
			t.Errorf("%s is encoded as %s, %v", form, got, err)
		}
	}
	var list []NameValue
	if err := json.Unmarshal([]byte(`[{"name":"a","value":""},{"name":"a"}]`), &list); err != nil || !list[0].HasValue() || list[1].HasValue() {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestLogValuesOmitContent(t *testing.T) {
	var log bytes.Buffer
	key, yes := "pin", true
	e := Entry{Kind: KindChannelData, ChannelID: "c", ChannelData: []ChannelDatum{{Key: &key, Value: jsontext.Value(`"4711"`), SensitiveData: &yes}}}
	e.Text = "4711"
	slog.New(slog.NewTextHandler(&log, nil)).Info("routed", "entry", e, "datum", e.ChannelData[0], "empty", ChannelDatum{})
	if strings.Contains(log.String(), "4711") || !strings.Contains(log.String(), "channel_data") {
		t.Error(log.String())
	}
}

func TestProfileKeepsUnknownMembers(t *testing.T) {
	const profile = `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true,"quota":3}],"actions":{"hangup":{"tone":"low"},"later":1},"speech":{"stt":["a"],"mode":"fast"},"theme":{"a":1}}`
	var p GatewayProfile
	decode(t, profile, &p)
	if got, err := json.Marshal(p); err != nil || string(got) != profile {
		t.Errorf("encoded as %s, %v", got, err)
	}
}

func TestIDsThatClientsRemoveFromPathsAreInvalid(t *testing.T) {
	for id, want := range map[string]bool{".": false, "..": false, "...": true, ".a": true, "a..": true, "a/..": false, "": false} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q): %v, want %v", id, got, want)
		}
	}
}

func TestTokenContainsWorkItemID(t *testing.T) {
	secret := strings.Repeat("s", 43)
	for token, want := range map[string]string{
		"cbt_" + secret + ".ask-1.2": "ask-1.2",
		"cbt_" + secret:              "",
		"cbt_" + secret + ".":        "",
		"cbt_" + secret + ".a b":     "",
		"cbt_" + secret[1:] + ".a":   "",
		"cbt_" + secret[1:] + ".a.b": "",
		"other_" + secret + ".a":     "",
		"":                           "",
		"cbt_" + secret + "." + strings.Repeat("a", 129): "",
	} {
		if got := TokenWorkItem(token); got != want {
			t.Errorf("TokenWorkItem(%q): %q, want %q", token, got, want)
		}
	}
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatal(err)
	}
}
