package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/test/testkit"
)

// grantAll is a counter that grants everything.
type grantAll struct{}

func (grantAll) Grant(_ context.Context, _ string, want, limit int64, window time.Duration) (ratelimit.Grant, error) {
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
	s.mux = s.newMux([]Route{route("GET", "/try", public, unlimited, handle)})
	return s, &log
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
	testkit.Equal(t, "requests in flight", testkit.MetricValue(t, s.metrics.inFlight), 0)
}

func TestPanicDuringResponseClosesConnection(t *testing.T) {
	s, log := newTestServer(func(x *exchange, _ *http.Request) error {
		_, _ = x.Write([]byte("half"))
		_ = http.NewResponseController(x).Flush()
		panic("the secret reason")
	})
	server := httptest.NewServer(s)
	resp, err := http.Get(server.URL + "/try")
	testkit.Must(t, err)
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the client read a complete response: %q", body)
	}
	server.Close() // waits for the handler and its log line
	if !strings.Contains(log.String(), "secret reason") || !strings.Contains(log.String(), `"level":"ERROR"`) {
		t.Errorf("the panic is not logged as an error: %s", log)
	}
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
		testkit.Equal(t, "requests in flight", testkit.MetricValue(t, s.metrics.inFlight), 0)
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
	testkit.Equal(t, "counted requests", testkit.MetricValue(t, s.metrics.requests.WithLabelValues("/try", "GET", "204")), 1)
}

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

func requestFrom(peer string, forwarded ...string) *http.Request {
	return &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": forwarded}}
}

func TestClientAddrTrustsOnlyTrustedProxies(t *testing.T) {
	for _, c := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string
	}{
		{"no proxy", "192.0.2.1:5000", []string{"198.51.100.1"}, "192.0.2.1"},
		{"one proxy", "10.0.0.1:5000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"no header", "10.0.0.1:5000", nil, "10.0.0.1"},
		{"forged address further left", "10.0.0.1:5000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:5000", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"two headers", "10.0.0.1:5000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"only proxies", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"invalid address next to the proxy", "10.0.0.1:5000", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"port", "10.0.0.1:5000", []string{"198.51.100.1:1234"}, "198.51.100.1"},
		{"IPv6 in brackets", "[fd00::1]:5000", []string{"[2001:db8::1]:99"}, "2001:db8::1"},
		{"IPv4-mapped IPv6", "[::ffff:10.0.0.1]:5000", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"IPv6 zone", "10.0.0.1:5000", []string{"fe80::1%eth0"}, "fe80::1"},
	} {
		if got := clientAddr(requestFrom(c.peer, c.forwarded...), proxies); got.String() != c.want {
			t.Errorf("%s: client %s, want %s", c.name, got, c.want)
		}
	}
	// Only the last maxHops addresses are read, and all of them are proxies.
	long := strings.Repeat("10.0.0.2, ", 10_000) + "10.0.0.3"
	if got := clientAddr(requestFrom("10.0.0.1:1", long), proxies); got.String() != "10.0.0.2" {
		t.Errorf("long header: client %s, want 10.0.0.2", got)
	}
}

func FuzzClientAddr(f *testing.F) {
	f.Add("10.0.0.1:1", "198.51.100.1, 10.0.0.2")
	f.Fuzz(func(t *testing.T, peer, forwarded string) {
		got := clientAddr(requestFrom(peer, forwarded), proxies)
		if direct, ok := parseAddr(peer); ok && !contains(proxies, direct) && got != direct {
			t.Errorf("X-Forwarded-For %q of untrusted peer %q: client %s, want the peer", forwarded, peer, got)
		}
		if got.Zone() != "" || got.Is4In6() {
			t.Errorf("client %s has a zone or is an IPv4-mapped IPv6 address", got)
		}
	})
}

func TestAudioMaxAgeEndsAtExpiry(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]string{
		time.Minute:  "private, max-age=60",
		time.Second:  "private, max-age=1",
		0:            "private, max-age=0",
		-time.Second: "private, max-age=0", // expired after it was opened
	} {
		testkit.Equal(t, fmt.Sprintf("%v left", left), cacheUntil(now.Add(left), now), want)
	}
}

// recordedInstances records the headers of forwarded requests.
type recordedInstances struct {
	Instances
	headers http.Header
}

func (i *recordedInstances) Forward(_ http.ResponseWriter, r *http.Request, _ string, _ func(error)) {
	i.headers = r.Header
}

// Otherwise a client could choose the address for which an instance limits it.
func TestForwardedHeadersOfUntrustedClientsAreReplaced(t *testing.T) {
	for peer, want := range map[string][]string{
		"127.0.0.1:5000": {"127.0.0.1", "api.example", "http"},
		"10.0.0.1:5000":  {"198.51.100.1", "public.example", "https"}, // a trusted proxy
	} {
		s, _ := newTestServer(nil)
		var instances recordedInstances
		s.deps.Instances, s.deps.TrustedProxies = &instances, proxies
		r := httptest.NewRequest("GET", "http://api.example/api/v1/endpoints", nil)
		r.RemoteAddr = peer
		r.Header = http.Header{"X-Forwarded-For": {"198.51.100.1"}, "X-Forwarded-Host": {"public.example"}, "X-Forwarded-Proto": {"https"}}
		s.ServeHTTP(httptest.NewRecorder(), r)
		for n, name := range ForwardedHeaders {
			if got := instances.headers.Values(name); len(got) != 1 || got[0] != want[n] {
				t.Errorf("from %s: %s %q, want %q", peer, name, got, want[n])
			}
		}
	}
}

// closeSignal is a listener that reports its first Close.
type closeSignal struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

func (l *closeSignal) Close() error {
	defer l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func TestConnectionOpenedBeforeShutdownIsServed(t *testing.T) {
	s, _ := newTestServer(func(x *exchange, _ *http.Request) error { x.WriteHeader(http.StatusNoContent); return nil })
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	l := &closeSignal{Listener: tcp, closed: make(chan struct{})}
	served, shutDown := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := net.Dial("tcp", tcp.Addr().String())
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	testkit.Until(t, "the connection is accepted", func() bool { return s.connections.count() == 1 })
	go func() { shutDown <- s.Shutdown(t.Context(), 0) }()
	<-l.closed
	testkit.Must(t, testkit.ErrorOf(io.WriteString(conn, "GET /try HTTP/1.1\r\nHost: test\r\n\r\n")))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	testkit.Must(t, err)
	_ = resp.Body.Close()
	testkit.Equal(t, "status", resp.StatusCode, http.StatusNoContent)
	testkit.Must(t, <-shutDown)
	testkit.WantError(t, "Serve", <-served, http.ErrServerClosed)
}

func TestTeamsShareTheMemoryForResponsesWithAudio(t *testing.T) {
	s, _ := newTestServer(nil)
	respond := func(teamID string, length int, want fault.Code) {
		t.Helper()
		sent := httptest.NewRecorder()
		x := &exchange{holder: teamID, Response: httpserve.Response{ResponseWriter: sent, Request: httptest.NewRequest("POST", "/", nil)}}
		err := x.respondWithAudio(s.audio, length, map[string]int{"length": length})
		if want == "" && (err != nil || !strings.Contains(sent.Body.String(), "length")) || want != "" && !fault.Is(err, want) {
			t.Errorf("%d bytes of %s: %v, sent %s; want %q", length, teamID, err, sent.Body, want)
		}
	}
	respond("a", audioBudget, "") // larger than the share, but the only one
	testkit.Must(t, s.audio.Take("a", s.audio.Share()-4))
	respond("a", 1, "")
	respond("a", 2, fault.RateLimitExceeded)
	respond("b", audioBudget, "")
	testkit.Equal(t, "bytes are used after the responses", s.audio.Used(), s.audio.Share()-4)
}
