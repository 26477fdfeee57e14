package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/test/contract"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// An instance replaces or rejects connections to sessions that another instance
// serves.
func TestSecondConnectionOnAnotherInstance(t *testing.T) {
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	other := svc.startPeer(t)

	t.Run("replaces the first", func(t *testing.T) {
		b, token, ch := svc.conversation(t)
		second := harness.Connect(t, other, b.Session, token, "")
		second.Expect(`"event":"ready"`)
		testkit.Equal(t, "first connection: close code", b.CloseCode(), 4502)
		checkConversation(t, second, ch)
	})
	t.Run("is rejected unless it names the first", func(t *testing.T) {
		id, token := svc.session(t, "duplicatePolicy", "reject")
		first := harness.Connect(t, svc.Instance, id, token, "")
		firstID := first.Expect(`"event":"ready"`).ConnectionID()
		ch := harness.Accept(t, harness.StartRuntime(t, svc.Instance))
		wantRejected(t, other, token, "", http.StatusConflict, "SESSION_IN_USE")
		wantRejected(t, other, token, "?connectionId="+uuid.NewString(), http.StatusConflict, "SESSION_IN_USE")
		for query, want := range map[string]int{"": http.StatusConflict, "?connectionId=" + firstID: http.StatusUpgradeRequired} {
			if resp, body := other.Call(t, http.MethodGet, "/ws/session"+query, "Authorization", "Bearer "+token); resp.StatusCode != want {
				t.Errorf("plain GET with %q: %d %s, want %d", query, resp.StatusCode, body, want)
			}
		}
		checkConversation(t, first, ch)

		second := harness.Connect(t, other, id, token, "?connectionId="+firstID)
		second.Expect(`"event":"ready"`)
		testkit.Equal(t, "first connection: close code", first.CloseCode(), 4502)
		wantRejected(t, svc.Instance, token, "?connectionId="+firstID, http.StatusConflict, "SESSION_IN_USE")
		checkConversation(t, second, ch)

		_ = second.Conn.Close()
		harness.Reconnect(t, svc.Instance, id, token, "")
	})
}

// A handshake that fails does not replace the open socket of its session.
func TestFailedHandshakeKeepsOpenSocket(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	b, token, ch := svc.conversation(t)
	const version, key = "Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for name, c := range map[string]struct {
		start, header, after string
		status               int
	}{
		"frame in the packet of the handshake": {"GET HTTP/1.1", version + key, harness.RawFrame(true, websocket.PingMessage, ""), http.StatusBadRequest},
		"pipelined request":                    {"GET HTTP/1.1", version + key, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", http.StatusBadRequest},
		"body":                                 {"GET HTTP/1.1", version + key + "Content-Length: 4\r\n", "body", http.StatusBadRequest},
		"announced body":                       {"GET HTTP/1.1", version + key + "Content-Length: 4\r\n", "", http.StatusBadRequest},
		"chunked body":                         {"GET HTTP/1.1", version + key + "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", http.StatusBadRequest},
		"HTTP/1.0":                             {"GET HTTP/1.0", version + key, "", http.StatusUpgradeRequired},
		"no key":                               {"GET HTTP/1.1", version, "", http.StatusUpgradeRequired},
		"old version":                          {"GET HTTP/1.1", "Sec-WebSocket-Version: 8\r\n" + key, "", http.StatusUpgradeRequired},
		"short key":                            {"GET HTTP/1.1", version + "Sec-WebSocket-Key: c2hvcnQ=\r\n", "", http.StatusUpgradeRequired},
		"HEAD":                                 {"HEAD HTTP/1.1", version + key, "", http.StatusUpgradeRequired},
	} {
		method, proto, _ := strings.Cut(c.start, " ")
		conn, err := net.Dial("tcp", strings.TrimPrefix(svc.URL, "http://"))
		testkit.Must(t, err, conn.SetDeadline(time.Now().Add(testkit.Timeout)))
		_, err = fmt.Fprintf(conn, "%s /ws/session?token=%s %s\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n%s\r\n%s", method, token, proto, c.header, c.after)
		testkit.Must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), httptest.NewRequest(method, "/ws/session", nil))
		testkit.Must(t, err)
		contract.CheckResponse(t, resp) // the envelope with the request ID
		if resp.StatusCode != c.status || c.status == http.StatusUpgradeRequired && resp.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s: %d %v, want %d, and the supported version with 426", name, resp.StatusCode, resp.Header, c.status)
		}
		testkit.Must(t, resp.Body.Close(), conn.Close())
		checkConversation(t, b, ch)
	}
}
