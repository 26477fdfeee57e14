package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace/noop"

	"telapi/internal/ratelimit"
	"telapi/test/testkit"
)

// grantAll is a counter that grants everything.
type grantAll struct{}

func (grantAll) Lease(_ context.Context, _ string, want, limit int64, window time.Duration) (ratelimit.Grant, error) {
	return ratelimit.Grant{Permits: want, Remaining: limit, Reset: window}, nil
}

// newTestServer returns a server with the route GET /try, and its log.
func newTestServer(handle handler) (*Server, *testkit.Buffer) {
	var log testkit.Buffer
	limits := ratelimit.DefaultLimits()
	s := New(Deps{
		Log: slog.New(slog.NewJSONHandler(&log, nil)), Registry: prometheus.NewRegistry(), Tracing: noop.NewTracerProvider(),
		Now: time.Now, Draining: func() bool { return false }, MaxSockets: 100, TeamShare: 25,
		Limits: ratelimit.NewLimiter(grantAll{}, func(context.Context) (*ratelimit.Limits, error) { return &limits, nil }, prometheus.NewRegistry()),
	})
	s.mux = s.newMux([]Route{{row: row{"GET", "/try", public, "", "", always, handle}}})
	return s, &log
}

func metricValue(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}

func TestPanicReturnsInternalErrorWithoutDetails(t *testing.T) {
	s, log := newTestServer(func(*exchange, *http.Request) error { panic("the secret reason") })
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/try", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), `"code":"INTERNAL_ERROR"`) || strings.Contains(w.Body.String(), "secret reason") {
		t.Errorf("response %d %s, want 500 INTERNAL_ERROR without the reason", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "secret reason") || !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("the log does not contain the panic and its stack: %s", log)
	}
	if n := metricValue(t, s.metrics.inFlight); n != 0 {
		t.Errorf("%v requests in flight, want 0", n)
	}
}

func TestPanicDuringResponseClosesConnection(t *testing.T) {
	s, log := newTestServer(func(x *exchange, _ *http.Request) error {
		_, _ = x.Write([]byte("half"))
		_ = http.NewResponseController(x).Flush()
		panic("the secret reason")
	})
	server := httptest.NewServer(s)
	resp, err := http.Get(server.URL + "/try")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the client read a complete response: %q", body)
	}
	server.Close() // waits for the handler and its log line
	if !strings.Contains(log.String(), "secret reason") || !strings.Contains(log.String(), `"level":"ERROR"`) {
		t.Errorf("the panic is not logged as an error: %s", log)
	}
}

func TestMalformedHTTPGetsEnvelope(t *testing.T) {
	s, _ := newTestServer(nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	for request, want := range map[string]string{
		"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n":                                        "400 VALIDATION_ERROR",
		"GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 40<<10) + "\r\n\r\n": "431 HEADER_TOO_LARGE",
		"GET / HTTP/3.0\r\nHost: a\r\n\r\n":                                           "505 HTTP_VERSION_NOT_SUPPORTED",
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%.20q: %v", request, err)
		}
		var envelope struct {
			Error struct{ Code, RequestID string }
		}
		err = json.NewDecoder(resp.Body).Decode(&envelope)
		_ = conn.Close()
		if got := fmt.Sprint(resp.StatusCode, " ", envelope.Error.Code); got != want || err != nil || envelope.Error.RequestID != resp.Header.Get("X-Request-Id") || !resp.Close {
			t.Errorf("%.20q: %s, header %v, %v; want %s with the request ID and close", request, got, resp.Header, err, want)
		}
	}
	if err := s.Shutdown(t.Context(), 0); err != nil {
		t.Error(err)
	}
	<-served
}

// A client must not choose the host to which others connect.
func TestBaseURLHasNoForgedHost(t *testing.T) {
	const proxy, direct = "192.0.2.10:4000", "192.0.2.20:4000"
	for _, c := range []struct{ from, host, forwarded, want string }{
		{direct, "localhost:8080", "", "http://localhost:8080"},
		{direct, "127.0.0.1", "", "http://127.0.0.1"},
		{direct, "198.51.100.1:8080", "", "http://198.51.100.1:8080"},
		{direct, "198.51.100.1", "", "http://198.51.100.1"},
		{direct, "[::ffff:198.51.100.1]:80", "", "http://[::ffff:198.51.100.1]:80"},
		{direct, "evil.example", "", "http://198.51.100.1:3001"},
		{direct, "198.51.100.2:3001", "", "http://198.51.100.1:3001"},
		{direct, "localhost:@evil.example", "", "http://198.51.100.1:3001"},
		{direct, "198.51.100.1:80@evil.example", "", "http://198.51.100.1:3001"},
		{direct, "", "", "http://198.51.100.1:3001"},
		{direct, "evil.example", "evil.example", "http://198.51.100.1:3001"},
		{proxy, "evil.example", "", "http://198.51.100.1:3001"},
		{proxy, "evil.example", "API.example:8443", "http://api.example:8443"},
		{proxy, "inner", "a@b/c", "http://198.51.100.1:3001"},
		{proxy, "inner", "evil.example,api.example", "http://198.51.100.1:3001"},
		{proxy, "inner", "evil.example\napi.example", "http://198.51.100.1:3001"},
	} {
		s := &Server{deps: Deps{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.10/32")}}}
		r := httptest.NewRequest("POST", "/", nil)
		r.RemoteAddr, r.Host = c.from, c.host
		if c.forwarded != "" {
			r.Header["X-Forwarded-Host"] = strings.Split(c.forwarded, "\n")
		}
		local := &net.TCPAddr{IP: net.IPv4(198, 51, 100, 1), Port: 3001}
		if got := s.baseURL(r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))); got != c.want {
			t.Errorf("from %s with Host %q, X-Forwarded-Host %q: %s, want %s", c.from, c.host, c.forwarded, got, c.want)
		}
	}
}

func TestAbortHandlerPanicPropagates(t *testing.T) {
	s, _ := newTestServer(func(*exchange, *http.Request) error { panic(http.ErrAbortHandler) })
	defer func() {
		if recover() != http.ErrAbortHandler { //nolint:errorlint // net/http compares it the same way
			t.Error("the panic did not reach net/http")
		}
		if n := metricValue(t, s.metrics.inFlight); n != 0 {
			t.Errorf("%v requests in flight, want 0", n)
		}
	}()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/try", nil))
}

func TestAccessLogOmitsQueryAndTruncatesPath(t *testing.T) {
	s, log := newTestServer(func(x *exchange, _ *http.Request) error {
		x.WriteHeader(http.StatusEarlyHints)
		x.WriteHeader(http.StatusNoContent)
		return nil
	})
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/try?token=swordfish", nil))
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/"+strings.Repeat("x", 10_000), nil))
	if strings.Contains(log.String(), "swordfish") || len(log.String()) > 2_000 {
		t.Errorf("logged %d bytes, want at most 2000 without the token: %.500s", len(log.String()), log)
	}
	if n := metricValue(t, s.metrics.requests.WithLabelValues("/try", "GET", "204")); n != 1 {
		t.Errorf("counted %v requests, want 1", n)
	}
}
