package fastlane_test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/media/internal/fastlane"
	"telapi/test/testkit"
)

// scriptedConn is a connection that returns its input in pieces and records the
// output.
type scriptedConn struct {
	net.Conn // panics on other calls
	mu       sync.Mutex
	input    []byte
	piece    int // bytes that a Read returns at most
	output   bytes.Buffer
	closed   chan struct{}
	once     sync.Once
}

func (s *scriptedConn) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(p[:min(len(p), s.piece)], s.input)
	if s.input = s.input[n:]; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s *scriptedConn) Write(p []byte) (int, error)      { return s.output.Write(p) }
func (s *scriptedConn) Close() error                     { s.once.Do(func() { close(s.closed) }); return nil }
func (s *scriptedConn) CloseWrite() error                { return nil }
func (s *scriptedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *scriptedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *scriptedConn) SetDeadline(time.Time) error      { return nil }
func (s *scriptedConn) SetReadDeadline(time.Time) error  { return nil }
func (s *scriptedConn) SetWriteDeadline(time.Time) error { return nil }

// scriptListener is a listener for scripted connections.
type scriptListener struct {
	scripts chan net.Conn
	end     chan struct{}
	once    sync.Once
}

func (s *scriptListener) Accept() (net.Conn, error) {
	select {
	case c := <-s.scripts:
		return c, nil
	case <-s.end:
		return nil, net.ErrClosed
	}
}
func (s *scriptListener) Close() error   { s.once.Do(func() { close(s.end) }); return nil }
func (s *scriptListener) Addr() net.Addr { return &net.TCPAddr{} }

var dateField = regexp.MustCompile(`\r\nDate: [^\r]*`)

// exchange sends an input and returns the complete output of the server.
func (s *scriptListener) exchange(input []byte, piece int) string {
	c := &scriptedConn{input: bytes.Clone(input), piece: piece, closed: make(chan struct{})}
	s.scripts <- c
	<-c.closed
	return dateField.ReplaceAllString(c.output.String(), "")
}

// serveScripts starts a server for scripted connections.
func serveScripts(t testing.TB, s blobDir, fastPath *fastlane.FastPath) *scriptListener {
	listener := &scriptListener{scripts: make(chan net.Conn), end: make(chan struct{})}
	srv := &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}
	ln := net.Listener(listener)
	if fastPath != nil {
		fastPath.Attach(srv)
		ln = fastPath.Listen(listener, nil)
	}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	return listener
}

var blobs = map[string]string{
	"/media/ab/x.alaw":     "hello",
	"/media/ab/empty.alaw": "",
	"/media/ab/large.pcm":  strings.Repeat("0123456789abcdef", 4<<10),
}

// inputs are inputs of a connection, with the number of responses from the cache.
var inputs = []struct {
	name, bytes string
	hits        uint64
}{
	{"nothing", "", 0},
	{"a plain GET", plainGet("/media/ab/x.alaw"), 1},
	{"an empty blob", plainGet("/media/ab/empty.alaw"), 1},
	{"a large blob", plainGet("/media/ab/large.pcm"), 1},
	{"all harmless fields", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: [::1]:80\r\nUser-Agent: Go/1\r\nAccept-Encoding: gzip\r\n" +
		"ACCEPT: */*\r\naccept-language:de\r\nCache-Control: \t no-cache \r\nPragma: no-cache\r\nConnection: Keep-Alive\r\nTraceparent: 00-1\r\n\r\n", 1},
	{"pipelined", plainGet("/media/ab/x.alaw") + plainGet("/media/ab/large.pcm") + plainGet("/media/ab/x.alaw"), 3},
	{"pipelined, one missing", plainGet("/media/ab/x.alaw") + plainGet("/media/ab/y.alaw") + plainGet("/media/ab/x.alaw"), 2},
	{"pipelined behind a body", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde" + plainGet("/media/ab/x.alaw"), 1},
	{"pipelined behind a body that looks like a request", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 46\r\n\r\n" + plainGet("/media/ab/x.alaw") +
		plainGet("/media/ab/x.alaw"), 1},
	{"pipelined behind HEAD", "HEAD /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n" + plainGet("/media/ab/x.alaw"), 1},
	{"pipelined behind a range", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nRange: bytes=1-2\r\n\r\n" + plainGet("/media/ab/x.alaw"), 1},
	{"an upload", put("/a", "abc"), 0},
	{"an empty upload", put("/a", "") + plainGet("/media/ab/x.alaw"), 1},
	{"uploads, pipelined", put("/a", "abc") + put("//b", strings.Repeat("x", 10_000)) + plainGet("/media/ab/x.alaw") + put("/c", "de"), 1},
	{"an upload with all known fields", "PUT /a HTTP/1.1\r\nhost: a\r\nAuthorization:\tBearer x \r\nCONTENT-type: audio/pcm\r\nUser-Agent: a\r\nuser-agent: \xff\r\n" +
		"Connection: keep-alive\r\nContent-Length: 003\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"a large upload", put("/a", strings.Repeat("x", 256<<10)) + plainGet("/media/ab/x.alaw"), 1},
	{"a longer upload", put("/a", strings.Repeat("x", 256<<10+1)) + plainGet("/media/ab/x.alaw"), 1},
	{"an unread upload", put("/unread", strings.Repeat("x", 10_000)) + plainGet("/media/ab/x.alaw"), 1},
	{"the largest unread upload that is skipped", put("/unread", strings.Repeat("x", 256<<10-1)) + plainGet("/media/ab/x.alaw"), 1},
	{"an unread upload that is not skipped", put("/unread", strings.Repeat("x", 256<<10)) + plainGet("/media/ab/x.alaw"), 0},
	{"an unread upload that is truncated", "PUT /unread HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", 0},
	{"an upload with Pragma", "PUT /a HTTP/1.1\r\nHost: a\r\nPragma: no-cache\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"an upload with a condition", "PUT /a HTTP/1.1\r\nHost: a\r\nIf-Match: *\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"an upload without a length", "PUT /a HTTP/1.1\r\nHost: a\r\n\r\n" + plainGet("/media/ab/x.alaw"), 1},
	{"an upload without a host", "PUT /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 0},
	{"an upload to a query", "PUT /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"an upload with Connection: close", "PUT /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 0},
	{"a GET with a type", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nContent-Type: a\r\n\r\n", 0},
	{"behind chunks", "PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + plainGet("/media/ab/x.alaw"), 0},
	{"two lengths", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 0},
	{"two lengths that differ", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 0},
	{"a length and chunks", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + plainGet("/media/ab/x.alaw"), 0},
	{"a length with a sign", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 0},
	{"a length of many digits", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nabc", 0},
	{"a truncated body", "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", 0},
	{"a GET with a body", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"an expectation", "PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc" + plainGet("/media/ab/x.alaw"), 1},
	{"an unknown expectation", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n", 0},
	{"conditional", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"5\"\r\n\r\n", 0},
	{"Connection: close", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + plainGet("/media/ab/x.alaw"), 0},
	{"HTTP/1.0", "GET /media/ab/x.alaw HTTP/1.0\r\nHost: a\r\n\r\n", 0},
	{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
	{"HTTP/1.1 in lower case", "GET /media/ab/x.alaw http/1.1\r\nHost: a\r\n\r\n", 0},
	{"get in lower case", "get /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"no host", "GET /media/ab/x.alaw HTTP/1.1\r\n\r\n", 0},
	{"an empty host", "GET /media/ab/x.alaw HTTP/1.1\r\nHost:\r\n\r\n", 0},
	{"two hosts", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 0},
	{"an invalid host", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a b\r\n\r\n", 0},
	{"absolute form", "GET http://a/media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"a query", "GET /media/ab/x.alaw?a=b HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"a fragment", "GET /media/ab/x.alaw#a HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"percent-encoded", "GET /media/ab/%78.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"an encoded slash", "GET /media%2fab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"dots", plainGet("/media/ab/../ab/x.alaw"), 0},
	{"two slashes", plainGet("//media/ab/x.alaw") + plainGet("/media//ab/x.alaw"), 0},
	{"no path", plainGet("*"), 0},
	{"bare line feeds", "GET /media/ab/x.alaw HTTP/1.1\nHost: a\n\n", 0},
	{"one bare line feed", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\n\r\n", 0},
	{"a bare carriage return", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\rb\r\n\r\n", 0},
	{"a folded field", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nAccept: a,\r\n b\r\n\r\n", 0},
	{"a space before the colon", "GET /media/ab/x.alaw HTTP/1.1\r\nHost : a\r\n\r\n", 0},
	{"a field without a name", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 0},
	{"a field without a colon", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nAccept\r\n\r\n", 0},
	{"a NUL in a value", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nAccept: \x00\r\n\r\n", 0},
	{"bytes above ASCII in a value", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nAccept: \xff\r\n\r\n", 1},
	{"two spaces", "GET  /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"a tab for a space", "GET\t/media/ab/x.alaw HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"an empty line first", "\r\n" + plainGet("/media/ab/x.alaw"), 0},
	{"a truncated header", plainGet("/media/ab/x.alaw") + "GET /media/ab/x.alaw HTT", 1},
	{"a truncated request line", "GE", 0},
	{"a truncated method of a later request", plainGet("/media/ab/x.alaw") + "GE", 1},
	{"a later line too short for a request", plainGet("/media/ab/x.alaw") + "0\n", 1},
	{"a long header", "GET /media/ab/x.alaw HTTP/1.1\r\nHost: a\r\nAccept: " + strings.Repeat("a", 5000) + "\r\n\r\n" + plainGet("/media/ab/x.alaw"), 0},
	{"TLS to a server without TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 0},
}

// startBoth starts one server with a fast path and one without.
func startBoth(t testing.TB) (with, without *scriptListener, fastPath *fastlane.FastPath) {
	s := newBlobDir(t, blobs)
	fastPath = fastlane.New(fastlane.Options{MaxBytes: 16 << 20, MaxUpload: 1 << 20, Load: s.load})
	return serveScripts(t, s, fastPath), serveScripts(t, s, nil), fastPath
}

func TestResponsesEqualNetHTTP(t *testing.T) {
	with, without, fastPath := startBoth(t)
	for _, in := range inputs {
		for _, piece := range []int{1 << 20, 1, 2, 7, 50} {
			before := fastPath.Stats().Hits
			got, want := with.exchange([]byte(in.bytes), piece), without.exchange([]byte(in.bytes), piece)
			testkit.Equal(t, fmt.Sprintf("%s, %d bytes at a time", in.name, piece), got, want)
			testkit.Equal(t, fmt.Sprintf("%s, %d bytes at a time: responses from the cache", in.name, piece), fastPath.Stats().Hits-before, in.hits)
		}
	}
}

func FuzzResponsesEqualNetHTTP(f *testing.F) {
	for _, in := range inputs {
		f.Add([]byte(in.bytes), uint16(1<<15))
		f.Add([]byte(in.bytes), uint16(1))
	}
	with, without, _ := startBoth(f)
	f.Fuzz(func(t *testing.T, input []byte, piece uint16) {
		if len(input) > 16<<10 {
			return
		}
		got, want := with.exchange(input, int(piece)+1), without.exchange(input, int(piece)+1)
		testkit.Equal(t, fmt.Sprintf("%.2000q, %d bytes at a time", input, int(piece)+1), got, want)
	})
}
