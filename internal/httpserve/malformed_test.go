package httpserve_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/httpserve"
	"telapi/test/testkit"
)

// plainText is a response that net/http writes by itself.
const plainText = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"

// serve runs a server until the test ends. It returns a function that opens a connection
// without TLS, one that opens a connection in the mode of the server, and the log.
func serve(t *testing.T, secure bool) (raw, dial func() net.Conn, log *testkit.Buffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, []byte(plainText), 0o600))
	log = &testkit.Buffer{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/own": // what http.Error sends
			w.Header().Set("Connection", "close")
			http.Error(w, "400 Bad Request", http.StatusBadRequest)
		case "/body": // a Write of its own
			w.Header().Set("Content-Length", strconv.Itoa(len(plainText)))
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, plainText)
		case "/file":
			http.ServeFile(w, r, file)
		case "/hijack":
			conn, _, _ := (&httpserve.Response{ResponseWriter: w}).Hijack()
			if _, isTLS := conn.(*tls.Conn); isTLS != secure {
				t.Errorf("hijacked a %T, want the connection of the listener", conn)
			}
			_, _ = io.WriteString(conn, plainText)
			_ = conn.Close()
		default:
			if (r.TLS != nil) != secure {
				t.Errorf("TLS state is %v, want one: %v", r.TLS, secure)
			}
		}
	}))
	server.Config.MaxHeaderBytes = 1 << 10
	if secure {
		certificates := httptest.NewTLSServer(nil)
		certificates.Close()
		config := certificates.TLS.Clone()
		config.NextProtos = []string{"http/1.1"}
		server.Listener = tls.NewListener(server.Listener, config)
	}
	server.Listener = httpserve.Listen(server.Config, server.Listener, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	server.Start()
	t.Cleanup(server.Close)
	raw = func() net.Conn {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		testkit.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
	dial = raw
	if secure {
		dial = func() net.Conn { return tls.Client(raw(), &tls.Config{InsecureSkipVerify: true}) }
	}
	return raw, dial, log
}

func TestMalformedRequestsGetEnvelope(t *testing.T) {
	const valid = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, secure := range []bool{false, true} {
		raw, dial, log := serve(t, secure)
		for _, c := range []struct {
			name, request string
			skip          int // responses before the one of interest
			status        int
			want          string
		}{
			{"a bad escape", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 0, 400, "VALIDATION_ERROR"},
			{"not HTTP", "hello\r\n\r\n", 0, 400, "VALIDATION_ERROR"},
			{"no host", "GET / HTTP/1.1\r\n\r\n", 0, 400, "missing required Host header"},
			{"a bad header name", "GET / HTTP/1.1\r\nHost: a\r\na b: c\r\n\r\n", 0, 400, "VALIDATION_ERROR"},
			{"a bad header value", "GET / HTTP/1.1\r\nHost: a\r\nA: \x01\r\n\r\n", 0, 400, "VALIDATION_ERROR"},
			{"a bad length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 0, 400, "VALIDATION_ERROR"},
			{"an unknown expectation", "GET / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 0, 417, "EXPECTATION_FAILED"},
			{"an unknown expectation, HTTP/1.0", "GET / HTTP/1.0\r\nExpect: more\r\n\r\n", 0, 417, "EXPECTATION_FAILED"},
			{"a large header", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 8<<10), 0, 431, "HEADER_TOO_LARGE"},
			{"an unknown transfer coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br\r\n\r\n", 0, 501, "NOT_IMPLEMENTED"},
			{"HTTP/3.0", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 0, 505, "HTTP_VERSION_NOT_SUPPORTED"},
			{"pipelined", valid + valid + "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 2, 400, "VALIDATION_ERROR"},
			{"HTTP to a TLS port", valid, 0, 400, "This port uses TLS"},
		} {
			conn := dial()
			if c.name == "HTTP to a TLS port" {
				if conn = raw(); !secure {
					continue
				}
			}
			testkit.Must(t, testkit.ErrorOf(io.WriteString(conn, c.request)))
			read := bufio.NewReader(conn)
			for range c.skip {
				if resp, err := http.ReadResponse(read, nil); err != nil || resp.StatusCode != 200 {
					t.Fatalf("%s: %v, %v; want 200 first", c.name, resp, err)
				}
			}
			resp, err := http.ReadResponse(read, nil)
			if err != nil {
				t.Errorf("%s, TLS %v: %v", c.name, secure, err)
				continue
			}
			body, _ := io.ReadAll(resp.Body)
			var envelope struct {
				Error struct{ Code, RequestID string }
			}
			if err := json.Unmarshal(body, &envelope); err != nil || resp.StatusCode != c.status || !strings.Contains(string(body), c.want) {
				t.Errorf("%s, TLS %v: %d %s, want %d %s", c.name, secure, resp.StatusCode, body, c.status, c.want)
			}
			id := envelope.Error.RequestID
			if id == "" || resp.Header.Get("X-Request-Id") != id || resp.Header.Get("Content-Type") != "application/json" || !resp.Close || resp.Header.Get("Date") == "" {
				t.Errorf("%s, TLS %v: header %v, want JSON, the request ID %s and close", c.name, secure, resp.Header, id)
			}
			if c.name != "HTTP to a TLS port" && !log.Has(id) {
				t.Errorf("%s, TLS %v: the log does not contain the request ID", c.name, secure)
			}
			if _, err := read.ReadByte(); err == nil {
				t.Errorf("%s, TLS %v: the connection stays open", c.name, secure)
			}
		}
	}
}

// Handlers may send anything, even what net/http sends by itself.
func TestResponsesOfHandlersAreUnchanged(t *testing.T) {
	for _, secure := range []bool{false, true} {
		_, dial, _ := serve(t, secure)
		for path, want := range map[string]string{
			"/own":    "\r\n\r\n400 Bad Request\n",
			"/body":   "\r\n\r\n" + plainText,
			"/file":   "\r\n\r\n" + plainText,
			"/hijack": plainText,
		} {
			conn := dial()
			testkit.Must(t, testkit.ErrorOf(io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")))
			if got, err := io.ReadAll(conn); err != nil || !strings.Contains(string(got), want) {
				t.Errorf("%s, TLS %v: %q, %v; want %q in it", path, secure, got, err, want)
			}
		}
	}
}

// fileConn counts the files that net/http sends with sendfile.
type fileConn struct {
	*net.TCPConn
	files *atomic.Int32
}

func (c fileConn) ReadFrom(r io.Reader) (int64, error) {
	c.files.Add(1)
	return c.TCPConn.ReadFrom(r)
}

type fileListener struct {
	net.Listener
	files atomic.Int32
}

func (l *fileListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return fileConn{c.(*net.TCPConn), &l.files}, nil
}

func TestFilesAreSentWithSendfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, make([]byte, 64<<10), 0o600))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) }))
	files := &fileListener{Listener: server.Listener}
	server.Listener = httpserve.Listen(server.Config, files, slog.New(slog.DiscardHandler))
	server.Start()
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	testkit.Must(t, err)
	n, err := io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if n != 64<<10 || err != nil || files.files.Load() != 1 {
		t.Errorf("received %d bytes (%v), %d of 1 files sent by the connection of the listener", n, err, files.files.Load())
	}
}

func TestLocalHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:3001": true, "127.0.0.1:80": true, "127.1.2.3": true, "[::1]": true, "[::1]:3001": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "localhost:@evil.example": false, "localhost@evil.example": false, "localhost:80/x": false,
		"localhost:x": false, "localhost#x": false, "192.0.2.1": false, "::1": false, "[::1%25x]": false, "0.0.0.0": false, "127.0.0.1.evil.example": false,
	} {
		testkit.Equal(t, fmt.Sprintf("%q", host), httpserve.IsLocalHost(host), want)
	}
}
