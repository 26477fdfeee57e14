package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/auth"
	"telapi/internal/httpserve"
)

// exchange is one request with its response. It is the http.ResponseWriter of all
// handlers.
type exchange struct {
	httpserve.Response
	ctx       context.Context // request context with ID and trace, without the handler timeout
	route     *Route          // nil: no route matches
	client    netip.Addr
	principal auth.Principal
}

// ServeHTTP assigns the request ID, routes the request, and records the outcome
// in the access log, the metrics and the trace.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.deps.Now()
	x := &exchange{client: clientAddr(r, s.deps.TrustedProxies), Response: httpserve.Response{
		ResponseWriter: w, Request: r, RequestID: httpserve.NewRequestID(r.Header), Realm: "telapi",
	}}
	h := w.Header()
	h.Set(httpserve.RequestIDHeader, x.RequestID)
	h.Set("X-Content-Type-Options", "nosniff")
	if s.deps.Draining() {
		h.Set("Connection", "close") // the next request belongs on another instance
	}

	var span trace.Span
	ctx := continueTrace(httpserve.WithRequestID(r.Context(), x.RequestID), r)
	x.ctx, span = s.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))

	s.metrics.inFlight.Inc()
	defer x.RecoverAndFinish(func() {
		s.metrics.inFlight.Dec()
		s.observe(x, span, s.deps.Now().Sub(start))
	})
	s.dispatch(x, r)
}

// statusClientClosed is recorded when the client disconnects before it gets its
// response. It is never sent.
const statusClientClosed = 499

type httpMetrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newHTTPMetrics(registry prometheus.Registerer) httpMetrics {
	auto := promauto.With(registry)
	return httpMetrics{
		requests: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_http_requests_total", Help: "HTTP requests by route, method and status."},
			[]string{"route", "method", "status"}),
		duration: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_http_request_duration_seconds", Help: "Time from the request header to the end of the response.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
			[]string{"route", "method"}),
		inFlight: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_http_requests_in_flight", Help: "HTTP requests in progress."}),
	}
}

func (s *Server) observe(x *exchange, span trace.Span, elapsed time.Duration) {
	if x.Err != nil && errors.Is(x.Err, context.Canceled) && x.Request.Context().Err() != nil {
		x.Status = statusClientClosed
	}
	method, pattern, level := httpserve.Method(x.Request), "unmatched", slog.LevelInfo
	if x.route != nil {
		pattern = x.route.Path
		if x.route.Tier == "" {
			level = slog.LevelDebug // health checks and scrapes, which have no rate limit, are frequent
		}
	}
	s.metrics.requests.WithLabelValues(pattern, method, strconv.Itoa(x.Status)).Inc()
	s.metrics.duration.WithLabelValues(pattern, method).Observe(elapsed.Seconds())

	if span.IsRecording() {
		span.SetName(method + " " + pattern)
		span.SetAttributes(
			attribute.String("http.request.method", method),
			attribute.String("http.route", pattern),
			attribute.Int("http.response.status_code", x.Status),
			attribute.String("telapi.team_id", x.principal.TeamID),
		)
		if x.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(x.Status))
		}
	}
	span.End()

	var attrs []slog.Attr
	if x.principal.TeamID != "" {
		attrs = []slog.Attr{slog.String("team_id", x.principal.TeamID), slog.String("subject", x.principal.Subject)}
	}
	x.Log(x.ctx, s.deps.Log, level, elapsed, x.client.String(), attrs...)
}
