package hostile

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// rawHandshake sends a handshake with the given protocol version, header lines and
// bytes after the header, in one write. It returns the status of the response.
func rawHandshake(t *testing.T, i *harness.Instance, token, proto, header, after string) int {
	t.Helper()
	host := strings.TrimPrefix(i.URL, "http://")
	conn, err := net.Dial("tcp", host)
	testkit.Must(t, err)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Timeout))
	_, err = fmt.Fprintf(conn, "GET /ws/session?token=%s %s\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n%s", token, proto, host, header, after)
	testkit.Must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("X-Request-Id"); id == "" || resp.StatusCode >= 400 && !strings.Contains(harness.Body(resp), id) {
		t.Errorf("status %d without a request ID or the error envelope", resp.StatusCode)
	}
	return resp.StatusCode
}

// A handshake that fails does not replace the open socket of its session.
func TestFailedHandshakeKeepsOpenSocket(t *testing.T) {
	i := harness.Start(t, harness.Env{})
	tenant := harness.NewTenant(t, i, "tenant")
	session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	b := harness.Connect(t, i, session, token, "")
	b.Expect(`"event":"ready"`)
	const ping = "\x89\x80\x00\x00\x00\x00"
	for name, c := range map[string]struct {
		proto, header, after string
		want                 int
	}{
		"frame in the packet of the handshake": {"HTTP/1.1", "", ping, http.StatusBadRequest},
		"pipelined request":                    {"HTTP/1.1", "", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", http.StatusBadRequest},
		"body":                                 {"HTTP/1.1", "Content-Length: 4\r\n", "body", http.StatusBadRequest},
		"announced body":                       {"HTTP/1.1", "Content-Length: 4\r\n", "", http.StatusBadRequest},
		"chunked body":                         {"HTTP/1.1", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", http.StatusBadRequest},
		"HTTP/1.0":                             {"HTTP/1.0", "", "", http.StatusUpgradeRequired},
	} {
		if got := rawHandshake(t, i, token, c.proto, c.header, c.after); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
		id := b.Chat("still here")
		b.Expect(`"event":"ack"`, id) // fails if the socket was closed
	}
	harness.Connect(t, i, session, token, "").Expect(`"event":"ready"`) // a complete handshake replaces it
	if code := b.CloseCode(); code != 4502 {
		t.Errorf("replaced socket has close code %d, want 4502", code)
	}
}

// Sockets are closed with the documented code and reason.
func TestInvalidFramesAreClosedWithReason(t *testing.T) {
	i := harness.Start(t, harness.Env{})
	tenant := harness.NewTenant(t, i, "tenant")
	for name, c := range map[string]struct {
		frame string
		code  int
		want  string
	}{
		"reserved opcode": {"\x83\x80\x00\x00\x00\x00", 1002, "opcode"},
		"frame too large": {"\x81\xff\x00\x00\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00" + strings.Repeat("x", 1<<16+1), 1009, "frame too large"},
	} {
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
		if _, err := b.Conn.NetConn().Write([]byte(c.frame)); err != nil {
			t.Fatal(err)
		}
		_, err := b.Read()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(c.code)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: socket ended with %v, want code %d and a reason with %q", name, err, c.code, c.want)
		}
		testkit.Until(t, "the close is counted", func() bool {
			_, metrics := i.Call(t, "GET", "/metrics")
			return strings.Contains(metrics, fmt.Sprintf("telapi_sockets_closed_total{code=%q} 1\n", fmt.Sprint(c.code)))
		})
	}
}
