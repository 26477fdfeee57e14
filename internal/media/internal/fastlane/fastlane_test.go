package fastlane_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"telapi/internal/media/internal/fastlane"
	"telapi/test/testkit"
)

func TestConnectionReturnsFromNetHTTP(t *testing.T) {
	s := serve(t, newBlobDir(t, blobs), nil)
	c := s.dial(t)
	for range 200 { // the next request often arrives before net/http has finished the last
		c.send("HEAD /media/ab/empty.alaw HTTP/1.1\r\nHost: a\r\n\r\n")
		c.receive()
		c.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
		c.send("abc")
		c.receive()
		c.send(plainGet("/media/ab/large.pcm"))
		if status, body := c.receive(); status != http.StatusOK || body != blobs["/media/ab/large.pcm"] {
			t.Fatalf("status %d with %d bytes, want the large blob", status, len(body))
		}
	}
	testkit.Equal(t, "responses from the cache", s.fastPath.Stats().Hits, 200)
}

func TestTLS(t *testing.T) {
	authority := testkit.NewCA(t)
	cert, err := tls.X509KeyPair(authority.Issue(t, "127.0.0.1"))
	testkit.Must(t, err)
	isTLS := make(chan bool, 1)
	s := serve(t, newBlobDir(t, blobs), &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, func(srv *http.Server) {
		next := srv.Handler
		srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			isTLS <- r.TLS != nil && r.TLS.HandshakeComplete
			next.ServeHTTP(w, r)
		})
	})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		conn, err := tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
		testkit.Must(t, err)
		c := newClient(t, conn)
		before := s.fastPath.Stats().Hits
		for range 10 {
			c.send(plainGet("/media/ab/large.pcm"))
			if status, body := c.receive(); status != http.StatusOK || body != blobs["/media/ab/large.pcm"] {
				t.Fatalf("status %d with %d bytes, want the large blob", status, len(body))
			}
		}
		testkit.Equal(t, "responses from the cache", s.fastPath.Stats().Hits-before, 10)
		c.send("GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n")
		if status, body := c.receive(); status != http.StatusPartialContent || body != "he" || !<-isTLS {
			t.Errorf("range: status %d, %q, or a request without TLS state; want 206, he", status, body)
		}
	}
	t.Run("plain HTTP is rejected", func(t *testing.T) {
		c := s.dial(t)
		c.send(plainGet("/media/ab/x.alaw"))
		if response, _ := io.ReadAll(c); !strings.Contains(string(response), "This port uses TLS") {
			t.Errorf("response %q, want an error about HTTP on an HTTPS port", response)
		}
	})
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	const timeout = 10 * time.Second
	dir := newBlobDir(t, map[string]string{"/x.alaw": "hello"})
	for name, steps := range map[string]func(c client){
		"no request":                func(client) {},
		"incomplete header":         func(c client) { c.send("GET /x.alaw HTTP/1.1\r\nHost: a\r\n") },
		"idle":                      func(c client) { c.send(plainGet("/x.alaw")); c.receive() },
		"incomplete second request": func(c client) { c.send(plainGet("/x.alaw")); c.receive(); c.send("GET /x") },
		"idle after net/http":       func(c client) { c.send(strings.Replace(plainGet("/x.alaw"), "GET", "PUT", 1)); c.receive() },
		"idle after an upload":      func(c client) { c.send(put("/x", "abc")); c.receive() },
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			ln, c := newPipe(t)
			startOn(t, ln, dir, fastlane.New(fastlane.Options{MaxBytes: maxBytes, MaxUpload: 1 << 20, Load: dir.load}), nil, func(srv *http.Server) {
				srv.ReadHeaderTimeout, srv.IdleTimeout, srv.WriteTimeout = timeout, timeout, timeout
			})
			steps(c)
			before := time.Now()
			c.awaitEnd()
			if after := time.Since(before); after < timeout || after > timeout*5/4 { // deadlines are not renewed for each request
				t.Errorf("disconnected after %s, want %s to %s", after, timeout, timeout*5/4)
			}
		})
	}
}

// sendfile has its own way to wait for the client: see sendFile.
func TestClientThatDoesNotReadAFileIsDisconnected(t *testing.T) {
	s := serve(t, newBlobDir(t, map[string]string{"/large.pcm": strings.Repeat("x", 16<<20)}), nil, func(srv *http.Server) {
		srv.WriteTimeout, srv.IdleTimeout = 100*time.Millisecond, time.Hour
	})
	c := s.dial(t)
	c.send(plainGet("/large.pcm"))
	_, _ = c.in.Peek(1) // until the response has started, or timed out already
	testkit.Until(t, "the connection to end", func() bool { return s.fastPath.Connections() == 0 })
}

func TestShutdownFinishesResponses(t *testing.T) {
	blobs := map[string]string{"/large.pcm": strings.Repeat("x", 16<<20), "/x.alaw": "hello"}
	for name, first := range map[string]string{
		"new connection":  "",
		"after net/http":  "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
		"after an upload": "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, newBlobDir(t, blobs), nil)
			idle, reading := s.dial(t), s.dial(t)
			idle.send(plainGet("/x.alaw"))
			idle.receive()
			if first != "" {
				reading.send(first)
				reading.receive()
			}
			reading.send(plainGet("/large.pcm"))
			testkit.Must(t, testkit.ErrorOf(reading.in.Peek(1)))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			ended := make(chan error)
			go func() { ended <- errors.Join(s.srv.Shutdown(ctx), s.fastPath.Drain(ctx)) }()
			idle.awaitEnd()
			if _, body := reading.receive(); len(body) != 16<<20 {
				t.Errorf("received %d bytes, want %d", len(body), 16<<20)
			}
			reading.awaitEnd()
			testkit.Must(t, <-ended)
		})
	}
}

func TestDrainDisconnectsStalledClients(t *testing.T) {
	s := serve(t, newBlobDir(t, map[string]string{"/large.pcm": strings.Repeat("x", 16<<20)}), nil)
	c := s.dial(t)
	c.send(plainGet("/large.pcm"))
	testkit.Must(t, testkit.ErrorOf(c.in.Peek(1)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.WantError(t, "Drain", s.fastPath.Drain(ctx), context.Canceled)
	testkit.Until(t, "the connection to end", func() bool { return s.fastPath.Connections() == 0 })
}

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
					testkit.Must(t, err)
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
	testkit.WantError(t, "read by the handler", <-failures, os.ErrDeadlineExceeded)
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
	testkit.Must(t, <-ended)
}
