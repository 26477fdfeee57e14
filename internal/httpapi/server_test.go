package httpapi

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace/noop"

	"telapi/internal/ratelimit"
	"telapi/test/testlog"
)

// grantAll is a counter that grants everything.
type grantAll struct{}

func (grantAll) Lease(_ context.Context, _ string, want, limit int64, window time.Duration) (ratelimit.Grant, error) {
	return ratelimit.Grant{Permits: want, Remaining: limit, Reset: window}, nil
}

// newTestServer returns a server with the route GET /try, and its log.
func newTestServer(handle handler) (*Server, *testlog.Buffer) {
	var log testlog.Buffer
	limits := ratelimit.DefaultLimits()
	s := New(Deps{
		Log: slog.New(slog.NewJSONHandler(&log, nil)), Registry: prometheus.NewRegistry(), Tracing: noop.NewTracerProvider(),
		Now: time.Now, Draining: func() bool { return false },
		Limits: ratelimit.NewLimiter(grantAll{}, func(context.Context) (*ratelimit.Limits, error) { return &limits, nil }, prometheus.NewRegistry()),
	})
	s.mux = s.newMux([]Route{{"GET", "/try", public, "", "", always, handle}})
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
