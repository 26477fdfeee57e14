package libraries

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// unavailable plays a service whose store is unavailable for a request, on one connection.
type unavailable struct {
	t    *testing.T
	conn *websocket.Conn
}

func (u *unavailable) write(format string, args ...any) {
	u.t.Helper()
	testkit.Must(u.t, u.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, format, args...)))
}

// read returns the next request with an operation, and skips others.
func (u *unavailable) read(op wire.Op) (q wire.Request) {
	u.t.Helper()
	for q.Op != op {
		q = wire.Request{}
		testkit.Must(u.t, u.conn.SetReadDeadline(time.Now().Add(testkit.Timeout)))
		_, frame, err := u.conn.ReadMessage()
		testkit.Must(u.t, err)
		testkit.Must(u.t, json.Unmarshal(frame, &q))
	}
	return q
}

// reject rejects a request and returns how it is repeated.
func (u *unavailable) reject(q wire.Request, retryAfter time.Duration) wire.Request {
	u.t.Helper()
	rejected := time.Now()
	u.write(`{"id":%d,"error":{"code":"SERVICE_UNAVAILABLE","message":"later","details":{"retryAfterMs":%d}}}`, q.ID, retryAfter.Milliseconds())
	again := u.read(q.Op)
	if waited := time.Since(rejected); waited < retryAfter-20*time.Millisecond { // timers of other languages round
		u.t.Errorf("%s is repeated after %v, want %v", q.Op, waited, retryAfter)
	}
	return again
}

func TestRejectedRequestIsRepeatedWhenTheServiceAsksForIt(t *testing.T) {
	const retryAfter = 2500 * time.Millisecond // more than any default
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			conns := make(chan *websocket.Conn, 1)
			upgrader := websocket.Upgrader{Subprotocols: []string{wire.RuntimeProtocol}}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if conn, err := upgrader.Upgrade(w, r, nil); err == nil {
					conns <- conn
				}
			}))
			t.Cleanup(server.Close)
			startScript(t, language, harness.Env{"TELAPI_URL": server.URL, "TELAPI_KEY": "tk_1_secret", "TELAPI_NAME": "test"})
			u := &unavailable{t: t}
			select {
			case u.conn = <-conns:
				t.Cleanup(func() { _ = u.conn.Close() })
			case <-time.After(testkit.Timeout):
				t.Fatal("the runtime does not connect")
			}
			u.write(`{"id":%d,"ok":{"instance":"a","connection":"c","resumed":[],"pingIntervalMs":60000,"limits":{"frameBytes":1048576}}}`, u.read(wire.OpHello).ID)
			var first wire.Request
			for range 8 { // all that the runtime sends at once
				first = u.read(wire.OpAccept)
			}
			again := u.reject(first, retryAfter)
			if again.Retry {
				t.Error("the accept has retry, which is about a channel")
			}
			u.write(`{"id":%d,"ok":{"channel":"s","claim":"secret","team":"t","endpoint":"e","position":""}}`, again.ID)
			u.write(`{"event":"entry","channel":"s","position":"1-1","entry":{"kind":"frame","channelId":"s","at":1,"message":{"type":"chat","chat":{"text":"hi"}}}}`)
			if again := u.reject(u.read(wire.OpSend), retryAfter); !again.Retry {
				t.Error("the repeated send has no retry")
			}
		})
	}
}
