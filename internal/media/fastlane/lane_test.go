package fastlane_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/media/fastlane"
)

// shelf is a store in memory with a handler as a file server has it.
type shelf struct {
	mu    sync.Mutex
	files map[string][]byte
}

func (s *shelf) read(path string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.files[path]
	return b, ok
}

func header(body []byte) http.Header {
	return http.Header{
		"Content-Type":  {"audio/basic"},
		"Etag":          {fmt.Sprintf(`"%d-%x"`, len(body), body[:min(4, len(body))])},
		"Last-Modified": {time.Unix(1_700_000_000, 0).UTC().Format(http.TimeFormat)},
		"Accept-Ranges": {"bytes"},
	}
}

func (s *shelf) load(path string, limit int64) (fastlane.Object, bool) {
	body, ok := s.read(path)
	if !ok || int64(len(body)) > limit {
		return fastlane.Object{}, false
	}
	return fastlane.Object{Header: header(body), Body: body}, true
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.files[r.URL.Path] = body
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	body, ok := s.read(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	for name, values := range header(body) {
		w.Header()[name] = values
	}
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), bytes.NewReader(body))
}

// serve runs a server for a test, with a lane in front of it if there is one.
func serve(t testing.TB, handler http.Handler, lane *fastlane.Lane) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	addr := ln.Addr().String()
	if lane != nil {
		lane.Attach(srv)
		ln = lane.Listen(ln, nil)
	}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	return addr
}

func TestPlainGetsAreAnsweredByTheLaneAfterAnythingElse(t *testing.T) {
	s := &shelf{files: map[string][]byte{"/media/ab/x.alaw": []byte("hello")}}
	lane := fastlane.New(fastlane.Options{MaxBytes: 1 << 20, Load: s.load})
	conn, err := net.Dial("tcp", serve(t, s, lane))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for i, step := range []struct {
		request string
		status  int
		body    string
		hits    uint64
	}{
		{"GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 200, "hello", 1},
		{"GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\n\r\n", 206, "el", 1},
		{"GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 200, "hello", 2},
		{"PUT /media/ab/y.alaw HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 204, "", 2},
		{"GET /media/ab/y.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 200, "abc", 3},
		{"GET /media/ab/z.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 404, "404 page not found\n", 3},
		{"GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 200, "hello", 4},
	} {
		if _, err := io.Copy(conn, strings.NewReader(step.request)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != step.status || string(body) != step.body || lane.Stats().Hits != step.hits {
			t.Fatalf("step %d: status %d, body %q, %d hits", i, resp.StatusCode, body, lane.Stats().Hits)
		}
	}
}
