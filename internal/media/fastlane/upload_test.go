package fastlane_test

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"telapi/internal/media/fastlane"
)

// serveHandler runs a server with a handler for uploads and connects to it.
func serveHandler(t *testing.T, handler http.HandlerFunc) client {
	t.Helper()
	fastPath := fastlane.New(fastlane.Options{MaxUpload: 1 << 20})
	return start(t, handler, fastPath, nil, func(srv *http.Server) { srv.ErrorLog = log.New(io.Discard, "", 0) }).dial(t)
}

func TestUploadResponsesEqualNetHTTP(t *testing.T) {
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    string // without the Date
		ends    bool   // the server closes the connection
	}{
		"nothing":    {func(http.ResponseWriter, *http.Request) {}, "200 OK\r\nContent-Length: 0\r\n\r\n", false},
		"created":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(500) }, "201 Created\r\nContent-Length: 0\r\n\r\n", false},
		"no content": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); _, _ = w.Write([]byte("x")) }, "204 No Content\r\n\r\n", false},
		"close": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			w.Header().Set("A", "b")
		}, "200 OK\r\nA: b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := serveHandler(t, tt.handler)
			for range 2 {
				c.send(put("/a", strings.Repeat("unread content ", 5000)))
				var got string
				for !strings.HasSuffix(got, "\r\n\r\n") {
					line, err := c.in.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					got += line
				}
				if got = dateField.ReplaceAllString(got, ""); got != "HTTP/1.1 "+tt.want {
					t.Errorf("response %q, want %q", got, "HTTP/1.1 "+tt.want)
				}
				if tt.ends {
					c.awaitEnd()
					return
				}
			}
		})
	}
}

func TestFailedHandlerClosesConnection(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"expired write deadline": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := serveHandler(t, handler)
			c.send(put("/a", "abc"))
			c.awaitEnd()
		})
	}
}

func TestReadDeadlineOfUpload(t *testing.T) {
	failures := make(chan error, 1)
	c := serveHandler(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := io.ReadAll(r.Body)
		failures <- err
		w.WriteHeader(http.StatusBadRequest)
	})
	c.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
	if err := <-failures; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read by the handler: %v, want a timeout", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c.in), nil)
	if err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close {
		t.Errorf("response %v, %v; want status 400 and a closed connection", resp, err)
	}
	c.awaitEnd()
}

func TestDrainFinishesActiveUpload(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	fastPath := fastlane.New(fastlane.Options{MaxUpload: 1 << 20})
	s := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 {
			close(started)
			<-release
		}
	}), fastPath, nil)
	idle, c := s.dial(t), s.dial(t)
	idle.send(put("/a", ""))
	idle.receive()
	c.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
	<-started
	ended := make(chan error)
	go func() { ended <- fastPath.Drain(t.Context()) }()
	idle.awaitEnd()
	close(release)
	c.send("abc")
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil || resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("response %v, %v; want status 200 and a closed connection", resp, err)
	}
	c.awaitEnd()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
