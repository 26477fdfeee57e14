package faults

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// dialStalled opens a socket with a receive buffer of the given size, from which
// nothing is read.
func dialStalled(t *testing.T, svc *service, token string, buffer int) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{
		Subprotocols: []string{"telapi.v1", "telapi.bearer." + token},
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(buffer)
			}
			return conn, err
		},
	}
	conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(svc.URL, "http")+"/ws/session", nil)
	if err != nil {
		t.Fatalf("open socket: %v %s", err, harness.Body(resp))
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A browser that never reads is disconnected once its queue is full. Other
// sessions are not affected.
func TestStalledReaderIsClosed(t *testing.T) {
	const large = 60 << 10 // bytes
	onEmbedded(t, nil, func(t *testing.T, svc *service) {
		id, token := svc.session(t)
		dialStalled(t, svc, token, 4096)
		ch := harness.Accept(t, harness.StartRuntime(t, svc.env))
		other, _, otherCh := svc.conversation(t)

		text := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", large))
		closed := func() bool { return hasMetric(t, svc.Instance, `telapi_sockets_closed_total{code="4001"} 1`) }
		for n := 0; !closed(); n++ {
			if n == 400 {
				t.Fatalf("%d messages of %d bytes are queued for a stalled reader, want its socket closed", 10*n, large)
			}
			for range 10 {
				harness.SendChat(t, ch, text)
			}
			harness.SendChat(t, otherCh, fmt.Sprintf(`{"n":%d}`, n))
			other.Expect(fmt.Sprintf(`{"n":%d}`, n))
		}
		checkConversation(t, other, otherCh)

		b := harness.Connect(t, svc.Instance, id, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`)
		checkConversation(t, b, ch)
	})
}

// A browser that stops reading for a while keeps its socket, even if it sends
// pings meanwhile: pongs must not shorten the deadline of a write in progress.
func TestPausedReaderKeepsSocket(t *testing.T) {
	const (
		messages = 200                     // of 30 KB, of which the kernel buffers about 140
		pause    = 1500 * time.Millisecond // longer than the deadline of a pong, shorter than that of a write
	)
	onEmbedded(t, harness.Env{"SESSION_MAX_QUEUED_BYTES": "67108864", "SESSION_HISTORY_MESSAGES": "1000"}, func(t *testing.T, svc *service) {
		_, token := svc.session(t)
		conn := dialStalled(t, svc, token, 256<<10)
		ch := harness.Accept(t, harness.StartRuntime(t, svc.env))
		text := strings.Repeat("x", 30<<10)
		for n := range messages {
			harness.SendChat(t, ch, fmt.Sprintf(`{"n":%d,"text":%q}`, n, text))
			if n%10 == 0 {
				if err := conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(testkit.Timeout)); err != nil {
					t.Fatalf("ping: %v", err)
				}
			}
		}
		<-time.After(pause)
		for n := 0; n < messages; {
			_ = conn.SetReadDeadline(time.Now().Add(testkit.Timeout))
			_, frame, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("read %d messages, want %d: %v", n, messages, err)
			}
			if strings.Contains(string(frame), fmt.Sprintf(`"n":%d,`, n)) {
				n++
			}
		}
	})
}

// A replay may be larger than the queue of a live socket.
func TestReplayMayExceedQueue(t *testing.T) {
	const count = 50
	onEmbedded(t, harness.Env{"SESSION_MAX_QUEUED_BYTES": "65536"}, func(t *testing.T, svc *service) {
		id, token := svc.session(t)
		b := harness.Connect(t, svc.Instance, id, token, "")
		cursor := b.Expect(`"event":"ready"`).ReadyStreamID()
		ch := harness.Accept(t, harness.StartRuntime(t, svc.env))
		b.Cut()
		for n := range count {
			harness.SendChat(t, ch, fmt.Sprintf(`{"n":%d,"text":%q}`, n, strings.Repeat("x", 10<<10)))
		}
		b = harness.Connect(t, svc.Instance, id, token, "?streamId="+cursor)
		b.Expect(`"event":"ready"`, `"resumed":true`)
		for n := range count {
			b.Expect(fmt.Sprintf(`"chat":{"n":%d,`, n))
		}
		b.Expect(fmt.Sprintf(`{"recovered":true,"count":%d}`, count))
		checkConversation(t, b, ch)
	})
}
