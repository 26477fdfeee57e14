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
)

func loadFrames(t *testing.T) *frames {
	t.Helper()
	f, err := parsedFrames()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestTheSocketsFileSaysWhatTheCodeDoes(t *testing.T) {
	f := loadFrames(t)
	version, err := os.ReadFile("../../VERSION")
	if err != nil || f.file.Info.Version != strings.TrimSpace(string(version)) {
		t.Errorf("info.version is %s, the release is %s, %v", f.file.Info.Version, version, err)
	}
	if got := f.file.Channels["session"].Address; got != session.SocketPath {
		t.Errorf("the socket is at %s, the file says %s", session.SocketPath, got)
	}
	var codes []closeCode
	for _, c := range channel.CloseCodes() {
		codes = append(codes, closeCode{int(c), c.Reason(), c == channel.CloseRestart || c >= 4000 && c < 4500})
	}
	if !slices.Equal(codes, f.file.Info.CloseCodes) {
		t.Errorf("x-close-codes are\n%v, want\n%v", f.file.Info.CloseCodes, codes)
	}
	var limits any
	if raw, err := json.Marshal(channel.DefaultLimits()); err != nil || json.Unmarshal(raw, &limits) != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(limits, f.file.Info.Limits) {
		t.Errorf("x-limits are %v, want %v", f.file.Info.Limits, limits)
	}
}

func TestEveryTypeOfMessageIsInTheFileAndNoOther(t *testing.T) {
	f := loadFrames(t)
	want := map[Action][]string{}
	for _, kind := range wire.MessageTypes {
		want[Takes] = append(want[Takes], string(kind))
		if kind != wire.TypePing { // the service pings by the protocol's own means
			want[Delivers] = append(want[Delivers], string(kind))
		}
	}
	for action, types := range want {
		slices.Sort(types)
		if got := slices.Sorted(maps.Keys(f.messages[action])); !slices.Equal(got, types) {
			t.Errorf("the service %ss %v in the file, want %v", action, got, types)
		}
	}
	used := 0
	for _, op := range f.file.Operations {
		used += len(op.Messages)
	}
	if used != len(f.file.Channels["session"].Messages) {
		t.Errorf("%d messages are described and %d used", len(f.file.Channels["session"].Messages), used)
	}
}

// What the file allows a browser to send and what the service takes is the same.
func TestTheFileTakesTheFramesThatTheServiceTakes(t *testing.T) {
	f := loadFrames(t)
	const id = "3f1c2c9e-52a7-4b60-9f1e-0c9ad1b5a1de"
	frame := func(kind wire.MessageType, with string) string {
		m := wire.ChannelMessage{Type: kind}
		payload := ""
		if _, name := m.Payload(); name != "" {
			payload = fmt.Sprintf(`,%q:{"any":[1]}`, name)
		}
		return fmt.Sprintf(`{"type":%q,"sessionId":"ses_1","messageId":%q,"timestamp":1794738600000.5,"direction":"to_ari"%s%s}`, kind, id, payload, with)
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
	taken := 0
	for _, raw := range frames {
		_, refused := channel.ParseFrame([]byte(raw), "ses_1")
		if against := f.check(Takes, []byte(raw)); (refused == nil) != (against == nil) {
			t.Errorf("%s\nservice: %v\nfile: %v", raw, refused, against)
		}
		if refused == nil {
			taken++
		}
	}
	if want := len(wire.MessageTypes) + 2; taken != want {
		t.Errorf("%d frames were taken, want %d", taken, want)
	}
}

func TestAFrameThatTheFileDoesNotPromiseIsNoticed(t *testing.T) {
	f := loadFrames(t)
	const head = `{"sessionId":"ses_1","messageId":"3f1c2c9e-52a7-4b60-9f1e-0c9ad1b5a1de","timestamp":1,"direction":"to_browser",`
	for _, raw := range []string{
		head + `"type":"chat","chat":{}}`, // not to be resumed after
		head + `"type":"status","status":{"event":"ack"}}`,
		head + `"type":"status","status":{"event":"ready","connectionId":"x"}}`,
		head + `"type":"error","error":{"code":"ODD","message":"m","fatal":false}}`,
		head + `"type":"reconnect","reconnect":{"recovered":true}}`,
		head + `"type":"ping"}`,
		head + `"type":"audio","streamId":"x","audio":{}}`,
	} {
		if f.check(Delivers, []byte(raw)) == nil {
			t.Errorf("%s passed", raw)
		}
	}
	if err := f.check(Delivers, []byte(head+`"type":"status","streamId":"x","status":{"event":"ack"}}`)); err != nil {
		t.Errorf("a runtime's own status: %v", err)
	}
}
