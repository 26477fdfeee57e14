package media_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/media"
	"telapi/internal/redact"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// token is the upload token, if a service requires one.
const token = "the-upload-token"

// service is a running media service.
type service struct {
	t      *testing.T
	addr   string
	root   string
	client *http.Client
	drain  func()
	stop   func() // shuts down the service; may be called twice
}

// start runs a service until the test ends. Zero options get defaults.
func start(t *testing.T, o media.Options, secure *tls.Config) *service {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	if o.MaxObjectBytes == 0 {
		o.MaxObjectBytes = 1 << 20
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := media.New(o)
	testkit.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, secure) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	stopped := false
	run := &service{t: t, addr: l.Addr().String(), root: o.Root, client: &http.Client{Transport: transport}, drain: s.Drain}
	run.stop = func() {
		if stopped {
			return
		}
		stopped = true
		transport.CloseIdleConnections()
		if err := s.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("shut down: %v", err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.Close()
	}
	t.Cleanup(run.stop)
	return run
}

// do sends a request. Header lists names and values alternately.
func (s *service) do(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+path, strings.NewReader(body))
	testkit.Must(s.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	testkit.Must(s.t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	testkit.Must(s.t, err)
	return resp, string(got)
}

// mustPut stores a blob and returns its ETag.
func (s *service) mustPut(path, body string) string {
	s.t.Helper()
	if resp, text := s.do("PUT", path, body, "Authorization", "Bearer "+token); resp.StatusCode/100 != 2 {
		s.t.Fatalf("PUT %s: %d %s", path, resp.StatusCode, text)
	}
	resp, _ := s.do("HEAD", path, "")
	return resp.Header.Get("Etag")
}

// raw sends bytes and reads one response. The status is 0 if there is none.
func (s *service) raw(request, method string) (status int, body string) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	testkit.Must(s.t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func tokens(list ...string) (secrets []redact.Secret) {
	for _, s := range list {
		secrets = append(secrets, redact.Secret(s))
	}
	return secrets
}
