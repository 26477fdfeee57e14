package fastlane_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"telapi/internal/media/internal/fastlane"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// modified is the modification time of all blobs.
var modified = time.Unix(1_700_000_000, 0)

// blobDir is a directory of immutable blobs with a file server as handler. The
// handler echoes requests other than GET and HEAD, and does not read requests to
// /unread.
type blobDir struct{ dir string }

func newBlobDir(t testing.TB, blobs map[string]string) blobDir {
	t.Helper()
	s := blobDir{t.TempDir()}
	for path, content := range blobs {
		name := filepath.Join(s.dir, filepath.FromSlash(path))
		testkit.Must(t, os.MkdirAll(filepath.Dir(name), 0o750))
		testkit.Must(t, os.WriteFile(name, []byte(content), 0o600))
	}
	return s
}

func (s blobDir) open(path string) (fastlane.Blob, bool) {
	f, err := os.Open(filepath.Join(s.dir, filepath.Clean(path)))
	if err != nil {
		return fastlane.Blob{}, false
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() || filepath.Clean(path) != path {
		_ = f.Close()
		return fastlane.Blob{}, false
	}
	return fastlane.Blob{Header: http.Header{
		"Accept-Ranges": {"bytes"},
		"Cache-Control": {"private"},
		"Content-Type":  {"audio/basic"},
		"Etag":          {fmt.Sprintf(`"%d"`, info.Size())},
		"Last-Modified": {modified.UTC().Format(http.TimeFormat)},
	}, File: f, Size: info.Size()}, true
}

func (s blobDir) load(path string, limit int64) (fastlane.Blob, bool) {
	blob, ok := s.open(path)
	if ok && blob.Size > limit {
		_ = blob.File.Close()
		return fastlane.Blob{}, false
	}
	return blob, ok
}

func (s blobDir) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/unread":
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		body, err := io.ReadAll(r.Body)
		text := fmt.Sprintf("%s %s %s %s %q %v %v", r.Method, r.Host, r.URL, r.RequestURI, body, err, r.Header)
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = io.WriteString(w, text)
		return
	}
	blob, ok := s.open(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = blob.File.Close() }()
	for name, values := range blob.Header {
		w.Header()[name] = values
	}
	http.ServeContent(w, r, "", modified, blob.File)
}

// maxBytes allows blobs of 16 MiB.
const maxBytes = 1 << 30

// server is a running server with a fast path.
type server struct {
	addr     string
	srv      *http.Server
	fastPath *fastlane.FastPath
}

// serve runs a server with a fast path until the test ends. The server is
// modified by configure.
func serve(t testing.TB, s blobDir, secure *tls.Config, configure ...func(*http.Server)) server {
	t.Helper()
	return start(t, s, fastlane.New(fastlane.Options{MaxBytes: maxBytes, MaxUpload: 1 << 20, Load: s.load}), secure, configure...)
}

// start is like serve, with any handler and fast path.
func start(t testing.TB, handler http.Handler, fastPath *fastlane.FastPath, secure *tls.Config, configure ...func(*http.Server)) server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	return startOn(t, ln, handler, fastPath, secure, configure...)
}

// startOn is like start, with any listener.
func startOn(t testing.TB, ln net.Listener, handler http.Handler, fastPath *fastlane.FastPath, secure *tls.Config, configure ...func(*http.Server)) server {
	t.Helper()
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	for _, f := range configure {
		f(srv)
	}
	fastPath.Attach(srv)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(fastPath.Listen(ln, secure))
		close(done)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		_ = fastPath.Drain(context.Background())
		<-done
	})
	return server{ln.Addr().String(), srv, fastPath}
}

// pipe is a listener with one connection, in memory. Its deadlines follow the clock
// of synctest.
type pipe chan net.Conn

// newPipe returns the listener and the client's side of the connection.
func newPipe(t testing.TB) (pipe, client) {
	t.Helper()
	p := make(pipe, 1)
	conn, server := net.Pipe()
	p <- server
	return p, newClient(t, conn)
}

func (p pipe) Accept() (net.Conn, error) {
	conn, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipe) Close() error { close(p); return nil }
func (pipe) Addr() net.Addr { return &net.TCPAddr{} }

// client is one connection.
type client struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func (s server) dial(t testing.TB) client {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	testkit.Must(t, err)
	return newClient(t, conn)
}

func newClient(t testing.TB, conn net.Conn) client {
	t.Cleanup(func() { _ = conn.Close() })
	return client{t, conn, bufio.NewReader(conn)}
}

func (c client) send(request string) {
	c.t.Helper()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // so that a test that hangs fails
	testkit.Must(c.t, testkit.ErrorOf(io.WriteString(c, request)))
}

func (c client) receive() (status int, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	testkit.Must(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	testkit.Must(c.t, testkit.ErrorOf(b.ReadFrom(resp.Body)))
	return resp.StatusCode, b.String()
}

// awaitEnd waits until the server closes the connection.
func (c client) awaitEnd() {
	c.t.Helper()
	if b, err := c.in.ReadByte(); err == nil || os.IsTimeout(err) {
		c.t.Fatalf("read %q, %v; want a closed connection", b, err)
	}
}

// plainGet is a request for the fast path.
func plainGet(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: media\r\n\r\n" }

// put is an upload for the fast path.
func put(path, body string) string {
	return fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: media\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}
