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

	"go.uber.org/goleak"

	"telapi/internal/media/fastlane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// modified is when every object was.
var modified = time.Unix(1_700_000_000, 0)

// shelf is a folder of objects that do not change, with a handler as a file
// server has it. Everything but a read is answered with what arrived of it, and
// what is sent to /unread with nothing.
type shelf struct{ dir string }

func newShelf(t testing.TB, objects map[string]string) shelf {
	t.Helper()
	s := shelf{t.TempDir()}
	for path, content := range objects {
		name := filepath.Join(s.dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s shelf) open(path string) (fastlane.Blob, bool) {
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

func (s shelf) load(path string, limit int64) (fastlane.Blob, bool) {
	o, ok := s.open(path)
	if ok && o.Size > limit {
		_ = o.File.Close()
		return fastlane.Blob{}, false
	}
	return o, ok
}

func (s shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	o, ok := s.open(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = o.File.Close() }()
	for name, values := range o.Header {
		w.Header()[name] = values
	}
	http.ServeContent(w, r, "", modified, o.File)
}

// maxBytes has room for an object of 16 MiB.
const maxBytes = 1 << 30

// site is a server that a test talks to.
type site struct {
	addr string
	srv  *http.Server
	lane *fastlane.Lane
}

// serve runs a server with a lane until the test ends. It may change the server
// before it starts.
func serve(t testing.TB, s shelf, secure *tls.Config, changes ...func(*http.Server)) site {
	t.Helper()
	return start(t, s, fastlane.New(fastlane.Options{MaxBytes: maxBytes, MaxUpload: 1 << 20, Load: s.load}), secure, changes...)
}

func start(t testing.TB, handler http.Handler, lane *fastlane.Lane, secure *tls.Config, changes ...func(*http.Server)) site {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second}
	for _, change := range changes {
		change(srv)
	}
	lane.Attach(srv)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(lane.Listen(ln, secure))
		close(done)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		_ = lane.Drain(context.Background())
		<-done
	})
	return site{ln.Addr().String(), srv, lane}
}

// client is one connection.
type client struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func (s site) dial(t testing.TB) client {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, conn)
}

func newClient(t testing.TB, conn net.Conn) client {
	t.Cleanup(func() { _ = conn.Close() })
	return client{t, conn, bufio.NewReader(conn)}
}

func (c client) send(request string) {
	c.t.Helper()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // so that a test that hangs tells where
	if _, err := io.WriteString(c, request); err != nil {
		c.t.Fatal(err)
	}
}

func (c client) receive() (status int, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}

// awaitEnd fails if anything but the end of the connection comes.
func (c client) awaitEnd() {
	c.t.Helper()
	if b, err := c.in.ReadByte(); err == nil || os.IsTimeout(err) {
		c.t.Fatalf("the connection goes on: %q, %v", b, err)
	}
}

// plainGet is a request that the lane answers.
func plainGet(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: media\r\n\r\n" }

// put is an upload in the form that the lane takes.
func put(path, body string) string {
	return fmt.Sprintf("PUT %s HTTP/1.1\r\nHost: media\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}
