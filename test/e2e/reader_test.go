package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"telapi/test/harness"
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
	t.Parallel()
	svc := startService(t, harness.Env{"SESSION_PING_INTERVAL": "5m"}) // or the missing pong closes it first on a busy machine
	id, token := svc.session(t)
	dialStalled(t, svc, token, 4096)
	ch := harness.Accept(t, harness.StartRuntime(t, svc.Instance))
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
