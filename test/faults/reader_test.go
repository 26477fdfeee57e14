package faults

import (
	"context"
	"fmt"
	"net"
	"runtime"
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
	onEmbeddedAndReal(t, nil, func(t *testing.T, svc *service) {
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
	onEmbeddedAndReal(t, harness.Env{"SESSION_MAX_QUEUED_BYTES": "67108864", "SESSION_HISTORY_MESSAGES": "1000"}, func(t *testing.T, svc *service) {
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

// The memory for stalled readers is bounded by the size of their queues.
func TestStalledReadersUseBoundedMemory(t *testing.T) {
	const (
		readers, queue = 4, 1 << 16
		queues         = readers * (3*queue + 64<<10)
		connections    = 8 << 20 // clients of the stores may open more connections of 1 MB each
	)
	env, _ := harness.RealStores(t)
	env["SESSION_MAX_QUEUED_BYTES"], env["SESSION_HISTORY_MESSAGES"] = fmt.Sprint(queue), "10"
	svc := startService(t, env)
	rt := harness.StartRuntime(t, svc.env)
	before := heapInUse()
	text := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 30<<10))
	for range readers {
		_, token := svc.session(t)
		dialStalled(t, svc, token, 4096)
		ch := harness.Accept(t, rt)
		for range 300 { // 9 MiB, of which the kernel buffers less than half
			harness.SendChat(t, ch, text)
		}
	}
	if grown := heapInUse() - before; grown > queues+connections {
		t.Errorf("%d readers use %d KiB, want at most %d KiB", readers, grown>>10, (queues+connections)>>10)
	}
	testkit.Until(t, "all readers are disconnected", func() bool {
		return hasMetric(t, svc.Instance, fmt.Sprintf(`telapi_sockets_closed_total{code="4001"} %d`, readers))
	})
}

// heapInUse returns the bytes in use, without pooled objects.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // a pooled object survives one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A replay may be larger than the queue of a live socket.
func TestReplayMayExceedQueue(t *testing.T) {
	const count = 50
	onEmbeddedAndReal(t, harness.Env{"SESSION_MAX_QUEUED_BYTES": "65536"}, func(t *testing.T, svc *service) {
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
