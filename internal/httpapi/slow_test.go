package httpapi

import (
	"bufio"
	"errors"
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
)

// wires is a listener for connections within the process, which follow a test's
// clock.
type wires chan net.Conn

func (w wires) Accept() (net.Conn, error) {
	conn, open := <-w
	if !open {
		return nil, errors.New("closed")
	}
	return conn, nil
}

func (w wires) Close() error   { return nil }
func (w wires) Addr() net.Addr { return &net.TCPAddr{} }

// serveOn runs a server with a route that reads and one that answers at length,
// and returns a connection to it and when that was ended.
func serveOn(t *testing.T) (client net.Conn, ended <-chan time.Duration) {
	t.Helper()
	s, _ := newTestServer(nil)
	s.mux = s.newMux([]Route{
		{"GET", "/try", public, "", "", always, func(x *exchange, _ *http.Request) error {
			x.WriteBytes(http.StatusOK, "text/plain", make([]byte, 1<<20))
			return nil
		}},
		{"POST", "/try", public, "", "", always, withBody(func(*exchange, *http.Request, []byte) error {
			t.Error("a body that never came was handled")
			return nil
		})},
	})
	server, began, over := s.http, time.Now(), make(chan time.Duration, 1)
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			over <- time.Since(began)
		}
	}
	listener := make(wires, 1)
	client, far := net.Pipe()
	listener <- far
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { close(listener) })
	return client, over
}

func TestClientsThatHoldAConnectionAreCutOff(t *testing.T) {
	drip := func(conn net.Conn) {
		for {
			if _, err := conn.Write([]byte("a")); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	for name, c := range map[string]struct {
		behave func(net.Conn)
		within time.Duration
	}{
		"a byte of the header now and then": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\nX: ")
			drip(conn)
		}, 10 * time.Second},
		"a byte of the body now and then": {func(conn net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = io.WriteString(conn, "POST /try HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
			drip(conn)
		}, 31 * time.Second},
		"an answer that is not read": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\n\r\n")
		}, 60 * time.Second},
		"no further request": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}, 120 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, ended := serveOn(t)
				var client sync.WaitGroup
				client.Go(func() { c.behave(conn) })
				select {
				case after := <-ended:
					if after > c.within {
						t.Errorf("cut off after %s, want %s at the most", after, c.within)
					}
				case <-time.After(time.Hour):
					t.Error("never cut off")
				}
				_ = conn.Close()
				client.Wait()
			})
		})
	}
}

func TestBodyThatComesSlowlyLeavesTheTimeToHandleIt(t *testing.T) {
	for name, c := range map[string]struct {
		end  error
		want string
	}{
		"comes to its end": {nil, "200 []"},
		"breaks off":       {io.ErrUnexpectedEOF, "400 "},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newTestServer(nil)
			s.mux = s.newMux([]Route{{"POST", "/try", public, "", "", always, withBody(func(x *exchange, r *http.Request, body []byte) error {
				until, _ := r.Context().Deadline()
				if left := time.Until(until); r.Context().Err() != nil || left != handlerTimeout {
					t.Errorf("%s are left, %v", left, r.Context().Err())
				}
				x.WriteBytes(http.StatusOK, "application/json", body)
				return nil
			})}})
			body, pen := io.Pipe()
			go func() {
				_, _ = io.WriteString(pen, "[")
				time.Sleep(2 * handlerTimeout)
				_, _ = io.WriteString(pen, "]")
				_ = pen.CloseWithError(c.end)
			}()
			r, w := httptest.NewRequest("POST", "/try", body), httptest.NewRecorder()
			r.Header.Set("Content-Type", "application/json")
			s.ServeHTTP(w, r)
			if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, c.want) {
				t.Errorf("one that %s is answered %s", name, got)
			}
		})
	}
}

func TestHugeHeaderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, ended := serveOn(t)
		go func() {
			_, _ = io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("a", 64<<10)+"\r\n\r\n")
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%v, %v", resp, err)
		}
		_ = conn.Close()
		<-ended
	})
}

func TestStoreThatHangsIsAnswered503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newTestServer(func(_ *exchange, r *http.Request) error {
			<-r.Context().Done()
			return r.Context().Err()
		})
		began, w := time.Now(), httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/try", nil))
		if took := time.Since(began); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || took > 10*time.Second {
			t.Errorf("after %s answered %d %s", took, w.Code, w.Body)
		}
	})
}
