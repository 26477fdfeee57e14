package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"telapi/test/testkit"
)

// servePipe runs a server with a POST route that reads a body and a GET route with
// a long response. It returns a connection to the server. closed receives how long
// the connection was open when the server closes it.
func servePipe(t *testing.T) (client net.Conn, closed <-chan time.Duration) {
	t.Helper()
	s, _ := newTestServer(nil)
	s.mux = s.newMux([]Route{
		route("GET", "/try", public, unlimited, func(x *exchange, _ *http.Request) error {
			x.WriteBytes(http.StatusOK, "text/plain", make([]byte, 1<<20))
			return nil
		}),
		route("POST", "/try", public, unlimited, s.withBody(func(*exchange, *http.Request, []byte) error {
			t.Error("handled an incomplete body")
			return nil
		})),
	})
	start, closedAfter := time.Now(), make(chan time.Duration, 1)
	s.http.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closedAfter <- time.Since(start)
		}
	}
	listener := make(testkit.PipeListener, 1)
	client, server := net.Pipe()
	listener <- server
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { close(listener) })
	return client, closedAfter
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	drip := func(conn net.Conn) {
		for {
			if _, err := conn.Write([]byte("a")); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	for name, c := range map[string]struct {
		client func(net.Conn)
		within time.Duration // the server closes the connection
	}{
		"slow header": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\nX: ")
			drip(conn)
		}, 10 * time.Second},
		"unread response": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\n\r\n")
		}, 60 * time.Second},
		"idle connection": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}, 120 * time.Second},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			conn, closed := servePipe(t)
			var running sync.WaitGroup
			running.Go(func() { c.client(conn) })
			select {
			case after := <-closed:
				if after > c.within {
					t.Errorf("disconnected after %s, want at most %s", after, c.within)
				}
			case <-time.After(time.Hour):
				t.Error("not disconnected after an hour")
			}
			_ = conn.Close()
			running.Wait()
		})
	}
}

func TestSlowBodyDoesNotConsumeHandlerTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		end  error  // of the client's body
		want string // status and body
	}{
		"complete":   {nil, "200 []"},
		"incomplete": {io.ErrUnexpectedEOF, "400 "},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newTestServer(nil)
			s.mux = s.newMux([]Route{route("POST", "/try", public, unlimited, s.withBody(func(x *exchange, r *http.Request, body []byte) error {
				deadline, _ := r.Context().Deadline()
				if left := time.Until(deadline); r.Context().Err() != nil || left != handlerTimeout {
					t.Errorf("the handler has %s and context error %v, want %s", left, r.Context().Err(), handlerTimeout)
				}
				x.WriteBytes(http.StatusOK, "application/json", body)
				return nil
			}))})
			body, writer := io.Pipe()
			go func() {
				_, _ = io.WriteString(writer, "[")
				time.Sleep(2 * handlerTimeout)
				_, _ = io.WriteString(writer, "]")
				_ = writer.CloseWithError(c.end)
			}()
			r, w := httptest.NewRequest("POST", "/try", body), httptest.NewRecorder()
			r.Header.Set("Content-Type", "application/json")
			s.ServeHTTP(w, r)
			if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, c.want) {
				t.Errorf("%s body: response %s, want %s", name, got, c.want)
			}
		})
	}
}

func TestTooLargeHeaderIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, closed := servePipe(t)
		go func() {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("a", 64<<10)+"\r\n\r\n")
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("response %v (error %v), want status 431", resp, err)
		}
		_ = conn.Close()
		<-closed
	})
}

func TestHangingHandlerReturns503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newTestServer(func(_ *exchange, r *http.Request) error {
			<-r.Context().Done()
			return r.Context().Err()
		})
		start, w := time.Now(), httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/try", nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("response %d %s with Retry-After %q, want 503 with a value", w.Code, w.Body, w.Header().Get("Retry-After"))
		}
		if elapsed := time.Since(start); elapsed > handlerTimeout {
			t.Errorf("answered after %s, want at most %s", elapsed, handlerTimeout)
		}
	})
}
