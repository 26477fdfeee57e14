package httpapi

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"telapi/internal/httpserve"
	"telapi/test/testkit"
)

// An interruption ends the read of the server that waits for the next request, and with it the
// connection's context. The connection must not be used for another request then.
func TestConnectionOfInterruptedStreamIsNotUsedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		act      func(*streamReader)
		reusable bool
	}{
		"not interrupted":      {func(*streamReader) {}, true},
		"interrupted at end":   {func(s *streamReader) { s.interrupt(errStreamRestart) }, false},
		"interrupted too late": {func(s *streamReader) { s.finish(); s.interrupt(errStreamRestart) }, true},
		"deadline has expired": {func(s *streamReader) { s.deadline = time.Now() }, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := &streamReader{body: r.Body, conn: http.NewResponseController(w), used: true}
			for err := error(nil); !errors.Is(err, io.EOF); _, err = s.read(time.Now().Add(testkit.Timeout)) {
			}
			tt.act(s)
			if got := s.finish(); got != tt.reusable {
				t.Errorf("%s: the connection is reusable: %t, want %t", name, got, tt.reusable)
			}
		}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("data"))
		testkit.Must(t, err)
		resp, err := http.DefaultClient.Do(req)
		testkit.Must(t, err)
		_ = resp.Body.Close()
		server.Close()
	}
}

// A provider is still sending when its stream is interrupted. It gets the response, and its
// connection is not reset.
func TestResponseToInterruptedStreamArrives(t *testing.T) {
	ca := testkit.NewCA(t)
	certificate, err := tls.X509KeyPair(ca.Issue(t, "127.0.0.1"))
	testkit.Must(t, err)
	trusting := ca.ClientTLS()
	trusting.ServerName = "127.0.0.1"
	for name, tt := range map[string]struct {
		listen func(net.Listener) net.Listener
		client func(net.Conn) net.Conn
	}{
		"plain": {func(l net.Listener) net.Listener { return l }, func(c net.Conn) net.Conn { return c }},
		"TLS": {func(l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{certificate}})
		}, func(c net.Conn) net.Conn { return tls.Client(c, trusting) }},
	} {
		t.Run(name, func(t *testing.T) {
			const first, rest = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1", "0\r\n0123456789abcdef\r\n"
			responding, sent := make(chan struct{}), make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				x := &exchange{}
				x.ResponseWriter, x.Request = w, r
				body := newStreamReader(x, r)
				if _, err := body.readFirst(func() error { return errStreamRestart }); !errors.Is(err, errStreamRestart) {
					t.Errorf("read: %v, want the interruption", err)
				}
				_ = body.respond(x, func() error {
					close(responding)
					<-sent
					x.Fail(errStreamRestart)
					return nil
				})
			}))
			server.Listener = httpserve.Listen(server.Config, tt.listen(server.Listener), slog.New(slog.DiscardHandler))
			server.Start()
			defer server.Close()
			tcp, err := net.Dial("tcp", server.Listener.Addr().String())
			testkit.Must(t, err)
			defer tcp.Close()
			conn := tt.client(tcp)
			_, err = io.WriteString(conn, first)
			testkit.Must(t, err)
			<-responding
			_, err = io.WriteString(conn, rest)
			testkit.Must(t, err)
			close(sent)
			if response, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 503 ") || !strings.Contains(string(response), "again") {
				t.Errorf("read %q, %v; want status 503", response, err)
			}
			// TLS ends before the connection below it, which may be reset.
			testkit.Must(t, tcp.(*net.TCPConn).CloseWrite())
			if _, err := io.ReadAll(tcp); err != nil {
				t.Errorf("end of the connection: %v", err)
			}
		})
	}
}
