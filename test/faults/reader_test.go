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

	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// deaf opens a socket with some bytes of room on its way, on which nothing is read.
func deaf(t *testing.T, p *place, token string, room int) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{
		Subprotocols: []string{"telapi.v1", "telapi.bearer." + token},
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(room)
			}
			return conn, err
		},
	}
	conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(p.URL, "http")+"/ws/session", nil)
	if err != nil {
		t.Fatalf("open a socket: %v %s", err, talk.Body(resp))
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A browser that never reads is closed once its queue is full. It costs no more
// memory than that, and nobody else notices.
func TestStalledReaderIsClosed(t *testing.T) {
	const large = 60 << 10
	backends(t, nil, func(t *testing.T, p *place) {
		id, token := p.session(t)
		deaf(t, p, token, 4096)
		ch := talk.Accept(t, talk.StartRuntime(t, p.env))
		other, _, otherCh := p.conversation(t)

		text := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", large))
		closed := func() bool { return metric(t, p.Instance, `telapi_sockets_closed_total{code="4001"} 1`) }
		for n := 0; !closed(); n++ {
			if n == 400 {
				t.Fatalf("%d messages of %d bytes are queued for somebody who reads none", n, large)
			}
			for range 10 {
				talk.SendChat(t, ch, text)
			}
			talk.SendChat(t, otherCh, fmt.Sprintf(`{"n":%d}`, n))
			other.Expect(fmt.Sprintf(`{"n":%d}`, n))
		}
		goesOn(t, other, otherCh)

		b := talk.Connect(t, p.Instance, id, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`)
		goesOn(t, b, ch)
	})
}

// A browser whose reading rests for a while keeps its socket, also where its
// library sends pings meanwhile: the pongs must not hurry what is being written.
func TestPausedReaderKeepsSocket(t *testing.T) {
	const messages = 200 // of 30 KB, of which the kernel takes about 140
	backends(t, boot.Env{"SESSION_MAX_QUEUED_BYTES": "67108864", "SESSION_HISTORY_MESSAGES": "1000"}, func(t *testing.T, p *place) {
		_, token := p.session(t)
		conn := deaf(t, p, token, 256<<10)
		ch := talk.Accept(t, talk.StartRuntime(t, p.env))
		text := strings.Repeat("x", 30<<10)
		for n := range messages {
			talk.SendChat(t, ch, fmt.Sprintf(`{"n":%d,"text":%q}`, n, text))
			if n%10 == 0 {
				if err := conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(10*time.Second)); err != nil {
					t.Fatalf("ping: %v", err)
				}
			}
		}
		time.Sleep(1500 * time.Millisecond) // as long as it rests: longer than the library gives a pong, and far less than a write has
		for n := 0; n < messages; {
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, frame, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("after %d messages: %v", n, err)
			}
			if strings.Contains(string(frame), fmt.Sprintf(`"n":%d,`, n)) {
				n++
			}
		}
	})
}

// What is queued for readers that never read stays within its bound, however
// many there are and however much is sent to them.
func TestStalledReadersUseBoundedMemory(t *testing.T) {
	const (
		readers, queue = 4, 1 << 16
		held           = readers * (3*queue + 64<<10)
		connections    = 8 << 20 // the stores' clients may open some more of a megabyte each
	)
	env, _ := realStores(t)
	env["SESSION_MAX_QUEUED_BYTES"], env["SESSION_HISTORY_MESSAGES"] = fmt.Sprint(queue), "10"
	p := newPlace(t, env)
	rt := talk.StartRuntime(t, p.env)
	before := heap()
	text := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 30<<10))
	for range readers {
		_, token := p.session(t)
		deaf(t, p, token, 4096)
		ch := talk.Accept(t, rt)
		for range 300 { // 9 MiB, of which the kernel takes less than half
			talk.SendChat(t, ch, text)
		}
	}
	if grown := heap() - before; grown > held+connections {
		t.Errorf("%d readers hold %d KiB", readers, grown>>10)
	}
	poll.Until(t, "all are closed", func() bool {
		return metric(t, p.Instance, fmt.Sprintf(`telapi_sockets_closed_total{code="4001"} %d`, readers))
	})
}

// heap is what is in use of it, pools emptied.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what is in a pool outlives one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// History may be larger than what is queued for a live socket: a browser that
// was away still gets all of it.
func TestReplayMayExceedQueue(t *testing.T) {
	const count = 50
	backends(t, boot.Env{"SESSION_MAX_QUEUED_BYTES": "65536"}, func(t *testing.T, p *place) {
		id, token := p.session(t)
		b := talk.Connect(t, p.Instance, id, token, "")
		cursor := b.Expect(`"event":"ready"`).ReadyStreamID()
		ch := talk.Accept(t, talk.StartRuntime(t, p.env))
		b.Cut()
		for n := range count {
			talk.SendChat(t, ch, fmt.Sprintf(`{"n":%d,"text":%q}`, n, strings.Repeat("x", 10<<10)))
		}
		b = talk.Connect(t, p.Instance, id, token, "?streamId="+cursor)
		b.Expect(`"event":"ready"`, `"resumed":true`)
		for n := range count {
			b.Expect(fmt.Sprintf(`"chat":{"n":%d,`, n))
		}
		b.Expect(fmt.Sprintf(`{"recovered":true,"count":%d}`, count))
		goesOn(t, b, ch)
	})
}
