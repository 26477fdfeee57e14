package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// An invalid frame is answered with an error that describes the problem. The socket stays open.
// Package channel tests what is invalid.
func TestInvalidFrameIsAnsweredWithError(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, _ := svc.connect(t)
	id := uuid.NewString()
	good := harness.Frame("chat", b.Session, id, "chat", `{"text":"x"}`)
	for invalid, parts := range map[string][]string{
		strings.Replace(good, "to_ari", "to_browser", 1): {`"code":"VALIDATION_ERROR"`, `"path":"/direction"`, `"relatesTo":"` + id},
		`{"type":"chat"}`:  {`"code":"VALIDATION_ERROR"`, "See the member issues.", `"issues":[`},
		good[:len(good)/2]: {`"code":"MALFORMED_JSON"`},
	} {
		b.Write(invalid)
		b.Expect(append(parts, `"type":"error"`, `"fatal":false`)...)
		b.Expect(`"event":"ack"`, b.Chat("valid"))
	}
	testkit.Must(t, b.Conn.WriteMessage(websocket.BinaryMessage, []byte(good)))
	b.Expect(`"type":"error"`, `"code":"MALFORMED_JSON"`, "Send text frames.")
	b.Write(good)
	b.Expect(`"event":"ack"`, id)
	b.Write(fmt.Sprintf(`{"type":"ping","sessionId":%q,"messageId":%q,"timestamp":1,"direction":"to_ari"}`, b.Session, uuid.NewString()))
	b.Expect(`"type":"pong"`, `"direction":"to_browser"`)
}

// Sockets are closed with the documented code and reason. Frames up to the limit are accepted.
func TestInvalidFramesAreClosedWithReason(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, _ := svc.connect(t)
	id := uuid.NewString()
	bare := harness.Frame("chat", b.Session, id, "chat", `{"text":""}`)
	b.Write(strings.Replace(bare, `"text":"`, `"text":"`+strings.Repeat("x", 64<<10-len(bare)), 1))
	b.Expect(`"event":"ack"`, id)
	for name, c := range map[string]struct {
		frame  string
		code   int
		reason string
	}{
		"64 KiB + 1 byte": {harness.RawFrame(true, websocket.TextMessage, strings.Repeat("x", 64<<10+1)), 1009, "frame too large"},
		"invalid UTF-8":   {harness.RawFrame(true, websocket.TextMessage, "{\"type\":\"\xff\"}"), 1007, ""},
		"reserved opcode": {harness.RawFrame(true, 3, ""), 1002, "opcode"},
	} {
		b, _ := svc.connect(t)
		_, err := io.WriteString(b.Conn.NetConn(), c.frame)
		testkit.Must(t, err)
		if _, err := b.Read(); !websocket.IsCloseError(err, c.code) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: socket ended with %v, want code %d and a reason with %q", name, err, c.code, c.reason)
		}
		closed := fmt.Sprintf(`telapi_sockets_closed_total{code="%d"} 1`, c.code)
		testkit.Until(t, closed, func() bool { return hasMetric(t, svc.Instance, closed) })
	}
}

// A frame is delivered even if the close frame arrives in the same packet.
func TestFrameBeforeCloseIsDelivered(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, _, ch := svc.conversation(t)
	last := harness.Frame("chat", b.Session, uuid.NewString(), "chat", `{"text":"good-bye"}`)
	_, err := io.WriteString(b.Conn.NetConn(), harness.RawFrame(true, websocket.TextMessage, last)+harness.RawFrame(true, websocket.CloseMessage, "\x03\xe8"))
	testkit.Must(t, err)
	var events []string
	for !slices.Contains(events, "disconnected") {
		e := harness.Receive(t, ch)
		events = append(events, string(e.Kind), e.Event)
	}
	if !slices.Contains(events, string(wire.KindFrame)) {
		t.Errorf("runtime received %q, want the frame", events)
	}
}

// Clients other than browsers send pings of the WebSocket protocol. The pong
// carries the same data and precedes the ack of the next frame.
func TestProtocolPingIsAnswered(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, _ := svc.connect(t)
	var pongs []string
	b.Conn.SetPongHandler(func(data string) error { pongs = append(pongs, data); return nil })
	for _, data := range []string{"", "are you there?"} {
		testkit.Must(t, b.Conn.WriteControl(websocket.PingMessage, []byte(data), time.Now().Add(testkit.Timeout)))
		b.Expect(`"event":"ack"`, b.Chat("hello"))
	}
	if want := []string{"", "are you there?"}; !slices.Equal(pongs, want) {
		t.Errorf("pongs are %q, want %q", pongs, want)
	}
}

// A fragmented message that never ends closes the socket: because of its size, or
// because two pings are not answered.
func TestEndlessFragmentsAreClosed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload string
		ping    string // interval
		code    int
	}{
		"small fragments": {"x", "1s", 4002},
		"large fragments": {strings.Repeat("x", 32<<10), "30s", 1009},
	} {
		b, _ := startService(t, harness.Env{"SESSION_PING_INTERVAL": c.ping}).connect(t)
		if c.code == 4002 { // fragments do not replace the pong
			b.Conn.SetPingHandler(func(string) error { return nil })
		}
		done := make(chan struct{})
		go func() {
			for opcode := byte(websocket.TextMessage); ; opcode = 0 {
				if _, err := io.WriteString(b.Conn.NetConn(), harness.RawFrame(false, opcode, c.payload)); err != nil {
					return
				}
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
		testkit.Equal(t, fmt.Sprintf("%s: close code", name), b.CloseCode(), c.code)
		close(done)
	}
}

// A replay may be larger than the queue of a live socket. It continues at a cursor, or at
// the start.
func TestReplayMayExceedQueue(t *testing.T) {
	const count = 50
	t.Parallel()
	svc := startService(t, harness.Env{"SESSION_MAX_QUEUED_BYTES": "65536"})
	id, token := svc.session(t)
	b := harness.Connect(t, svc.Instance, id, token, "")
	cursor := b.Expect(`"event":"ready"`).ReadyStreamID()
	ch := harness.Accept(t, harness.StartRuntime(t, svc.Instance))
	b.Cut()
	for n := range count {
		harness.SendChat(t, ch, fmt.Sprintf(`{"n":%d,"text":%q}`, n, strings.Repeat("x", 10<<10)))
	}
	for _, from := range []string{cursor, "start"} {
		b = harness.Connect(t, svc.Instance, id, token, "?streamId="+from)
		if ready := b.Expect(`"event":"ready"`, `"resumed":true`); ready.ReadyStreamID() != cursor {
			t.Errorf("resumed from %s: cursor of the ready frame is %s, want %s", from, ready.ReadyStreamID(), cursor)
		}
		for n := range count {
			b.Expect(fmt.Sprintf(`"chat":{"n":%d,`, n))
		}
		b.Expect(fmt.Sprintf(`{"recovered":true,"count":%d}`, count))
	}
	checkConversation(t, b, ch)
}
