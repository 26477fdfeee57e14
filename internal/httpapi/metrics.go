package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/httpserve"
)

// statusClientClosed is recorded when the client disconnects before it gets its
// response. It is never sent.
const statusClientClosed = 499

// httpMetrics are the metrics of all routes.
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

// observe records a finished request in metrics, trace and access log.
func (s *Server) observe(x *exchange, span trace.Span, took time.Duration) {
	if x.Err != nil && errors.Is(x.Err, context.Canceled) && x.Request.Context().Err() != nil {
		x.Status = statusClientClosed
	}
	method, pattern := httpserve.Method(x.Request), x.pattern()
	s.metrics.requests.WithLabelValues(pattern, method, strconv.Itoa(x.Status)).Inc()
	s.metrics.duration.WithLabelValues(pattern, method).Observe(took.Seconds())

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

	level := slog.LevelInfo
	if x.route != nil && x.route.Tier == "" {
		level = slog.LevelDebug // health checks and scrapes come every few seconds
	}
	var attrs []slog.Attr
	if x.principal.TeamID != "" {
		attrs = []slog.Attr{slog.String("team_id", x.principal.TeamID), slog.String("subject", x.principal.Subject)}
	}
	x.Log(x.ctx, s.deps.Log, level, took, x.client.String(), attrs...)
}
