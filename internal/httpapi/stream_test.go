package httpapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/httpserve"
	"telapi/test/testkit"
)

// pipeResponse is a response on a connection that a test controls.
type pipeResponse struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (r pipeResponse) SetReadDeadline(t time.Time) error { return r.conn.SetReadDeadline(t) }

func TestStreamReaderWaits(t *testing.T) {
	reason := errors.New("cancelled")
	for name, c := range map[string]struct {
		deadline  time.Duration
		pause     time.Duration // before each byte of the provider
		bytes     int
		interrupt time.Duration // 0: never
		want      error
		after     time.Duration
	}{
		"until silence":              {time.Hour, 0, 0, 0, os.ErrDeadlineExceeded, streamSilence},
		"until the deadline":         {time.Second, 0, 0, 0, os.ErrDeadlineExceeded, time.Second},
		"for a slow provider":        {time.Hour, streamSilence - time.Second, 4, 0, os.ErrDeadlineExceeded, 4*(streamSilence-time.Second) + streamSilence},
		"at most until the deadline": {time.Minute, time.Second, 1000, 0, os.ErrDeadlineExceeded, time.Minute},
		"until an interruption":      {time.Hour, time.Second, 1000, 90 * time.Second, reason, 90 * time.Second},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			provider, conn := net.Pipe()
			x := &exchange{}
			x.ResponseWriter = pipeResponse{httptest.NewRecorder(), conn}
			s := newStreamReader(x, &http.Request{Body: conn})
			start := time.Now()
			var writing sync.WaitGroup
			writing.Go(func() {
				for range c.bytes {
					time.Sleep(c.pause)
					if _, err := provider.Write([]byte("x")); err != nil {
						return
					}
				}
			})
			if c.interrupt > 0 {
				time.AfterFunc(c.interrupt, func() { s.interrupt(reason) })
			}
			read := 0
			for {
				data, err := s.read(start.Add(c.deadline))
				read += len(data)
				if err == nil {
					continue
				}
				if took := time.Since(start); took.Round(time.Second) != c.after {
					t.Errorf("ended after %s with %v, want %s", took, err, c.after)
				}
				break
			}
			if err := s.interrupted(); c.interrupt > 0 && !errors.Is(err, c.want) || c.interrupt == 0 && !errors.Is(s.err, c.want) {
				t.Errorf("error %v, interrupted %v, want %v", s.err, err, c.want)
			}
			if c.bytes < 1000 && read != c.bytes {
				t.Errorf("read %d bytes, want %d", read, c.bytes)
			}
			_, _ = provider.Close(), conn.Close()
			writing.Wait()
		})
	}
}

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
			testkit.Equal(t, fmt.Sprintf("%s: the connection is reusable", name), s.finish(), tt.reusable)
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
				testkit.WantError(t, "read", testkit.ErrorOf(body.readFirst(func() error { return errStreamRestart })), errStreamRestart)
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
			testkit.Must(t, testkit.ErrorOf(io.WriteString(conn, first)))
			<-responding
			testkit.Must(t, testkit.ErrorOf(io.WriteString(conn, rest)))
			close(sent)
			if response, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 503 ") || !strings.Contains(string(response), "again") {
				t.Errorf("read %q, %v; want status 503", response, err)
			}
			// TLS ends before the connection below it, which may be reset.
			testkit.Must(t, tcp.(*net.TCPConn).CloseWrite())
			testkit.NoError(t, "end of the connection", testkit.ErrorOf(io.ReadAll(tcp)))
		})
	}
}
