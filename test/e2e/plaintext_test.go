package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"telapi/test/boot"
)

// The responses that docs/errors.md lists as those of the HTTP server itself.
func TestHTTPServerRespondsInPlainText(t *testing.T) {
	i := boot.Start(t, nil)
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"malformed request line", "GET\r\n\r\n", 400},
		{"malformed header", "GET /health HTTP/1.1\r\nHost: x\r\na b\r\n\r\n", 400},
		{"no Host", "GET /health HTTP/1.1\r\n\r\n", 400},
		{"malformed Content-Length", "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
		{"unknown Expect", "GET /health HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417},
		{"large header", "GET /health HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", 431},
		{"unknown Transfer-Encoding", "POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
		{"unknown version", "GET /health HTTP/3.0\r\nHost: x\r\n\r\n", 505},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			contentType, id := resp.Header.Get("Content-Type"), resp.Header.Get("X-Request-Id")
			if resp.StatusCode != c.status || c.status != 417 && !strings.HasPrefix(contentType, "text/plain") || id != "" || !resp.Close {
				t.Errorf("%d of type %q with request ID %q, connection closed: %v; want %d in plain text without ID, closed", resp.StatusCode, contentType, id, resp.Close, c.status)
			}
		})
	}
}
