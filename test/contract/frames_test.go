package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/session"
	"telapi/test/testkit"
)

func loadFrames(t *testing.T) *frames {
	t.Helper()
	f, err := parsedFrames()
	testkit.Must(t, err)
	return f
}

func TestAsyncAPIMatchesCode(t *testing.T) {
	f := loadFrames(t)
	version, err := os.ReadFile("../../VERSION")
	if err != nil || f.file.Info.Version != strings.TrimSpace(string(version)) {
		t.Errorf("info.version is %s, want the release %s (%v)", f.file.Info.Version, version, err)
	}
	testkit.Equal(t, "documented socket path", f.file.Channels["session"].Address, session.SocketPath)
	var codes []closeCode
	for _, c := range channel.CloseCodes() {
		final := c >= 1007 && c <= 1009 || c >= 4500
		codes = append(codes, closeCode{int(c), c.Reason(), !final})
	}
	if !slices.Equal(codes, f.file.Info.CloseCodes) {
		t.Errorf("x-close-codes are\n%v, want\n%v", f.file.Info.CloseCodes, codes)
	}
	var limits any
	if raw, err := json.Marshal(channel.DefaultConnectionLimits()); err != nil || json.Unmarshal(raw, &limits) != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(limits, f.file.Info.Limits) {
		t.Errorf("x-limits are %v, want %v", f.file.Info.Limits, limits)
	}
}

func TestAsyncAPIListsAllMessageTypes(t *testing.T) {
	f := loadFrames(t)
	want := map[Action][]string{}
	for _, kind := range wire.MessageTypes {
		want[Receive] = append(want[Receive], string(kind))
		if kind != wire.TypePing { // the service sends WebSocket pings
			want[Send] = append(want[Send], string(kind))
		}
	}
	for action, types := range want {
		slices.Sort(types)
		if got := slices.Sorted(maps.Keys(f.messages[action])); !slices.Equal(got, types) {
			t.Errorf("action %s has message types %v, want %v", action, got, types)
		}
	}
	for name, channel := range f.file.Channels {
		used := map[string]bool{}
		for _, op := range f.file.Operations {
			if op.Channel.name() == name {
				for _, m := range slices.Concat(op.Messages, op.Reply.Messages) {
					used[m.name()] = true
				}
			}
		}
		if len(used) != len(channel.Messages) {
			t.Errorf("operations use %d messages, want all %d of the channel %s", len(used), len(channel.Messages), name)
		}
	}
}

// The schemas and the service accept the same frames from a browser.
func TestAsyncAPIAcceptsSameFramesAsService(t *testing.T) {
	f := loadFrames(t)
	const id = "3f1c2c9e-52a7-4b60-9f1e-0c9ad1b5a1de"
	frame := func(kind wire.MessageType, extra string) string {
		m := wire.ChannelMessage{Type: kind}
		payload := ""
		if _, name := m.Payload(); name != "" {
			payload = fmt.Sprintf(`,%q:{"any":[1]}`, name)
		}
		return fmt.Sprintf(`{"type":%q,"sessionId":"ses_1","messageId":%q,"timestamp":1794738600000.5,"direction":"to_ari"%s%s}`, kind, id, payload, extra)
	}
	good := frame(wire.TypeChat, "")
	frames := []string{frame(wire.TypeChat, `,"audio":{}`), frame(wire.TypePing, `,"later":1`), frame("shout", ""), `[]`, `{}`, `7`}
	for _, kind := range wire.MessageTypes {
		frames = append(frames, frame(kind, ""))
	}
	for _, broken := range [][2]string{
		{id, "7"}, {"to_ari", "to_browser"}, {"1794738600000.5", `"now"`}, {"1794738600000.5", "-1"}, {`"chat":{"any":[1]}`, `"chat":"hello"`},
		{`"chat":{"any":[1]}`, `"audio":{}`}, {`"type":"chat",`, ""}, {`"direction":"to_ari",`, ""}, {`"timestamp":1794738600000.5,`, ""},
	} {
		frames = append(frames, strings.Replace(good, broken[0], broken[1], 1))
	}
	accepted := 0
	for _, raw := range frames {
		_, parseErr := channel.ParseFrame([]byte(raw), "ses_1")
		if schemaErr := f.check(Receive, []byte(raw)); (parseErr == nil) != (schemaErr == nil) {
			t.Errorf("service and schema disagree about %s\nservice: %v\nschema: %v", raw, parseErr, schemaErr)
		}
		if parseErr == nil {
			accepted++
		}
	}
	if want := len(wire.MessageTypes) + 2; accepted != want {
		t.Errorf("%d frames accepted, want %d", accepted, want)
	}
}

func TestUndocumentedFrameIsRejected(t *testing.T) {
	f := loadFrames(t)
	const head = `{"sessionId":"ses_1","messageId":"3f1c2c9e-52a7-4b60-9f1e-0c9ad1b5a1de","timestamp":1,"direction":"to_browser",`
	for _, raw := range []string{
		head + `"type":"chat","chat":{}}`, // no streamId
		head + `"type":"status","status":{"event":"ack"}}`,
		head + `"type":"status","status":{"event":"ready","connectionId":"x"}}`,
		head + `"type":"error","error":{"code":"ODD","message":"m","fatal":false}}`,
		head + `"type":"reconnect","reconnect":{"recovered":true}}`,
		head + `"type":"ping"}`,
		head + `"type":"audio","streamId":"x","audio":{}}`,
	} {
		if f.check(Send, []byte(raw)) == nil {
			t.Errorf("undocumented frame was accepted: %s", raw)
		}
	}
	testkit.NoError(t, "status frame of a runtime", f.check(Send, []byte(head+`"type":"status","streamId":"x","status":{"event":"ack"}}`)))
}
