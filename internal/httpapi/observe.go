package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/reqid"
)

// clientClosed is what the log says of a client that left before its answer.
const clientClosed = 499

// maxLoggedPath keeps a client from filling the log with one request.
const maxLoggedPath = 256

// ServeHTTP gives every request its id, keeps a panic from passing, and tells
// log, metrics and trace how it went.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.deps.Now()
	x := &exchange{ResponseWriter: w, client: clientAddr(r, s.deps.TrustedProxies), id: requestID(r)}
	w.Header().Set(reqid.Header, x.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if s.deps.Draining() {
		w.Header().Set("Connection", "close") // the next request belongs on another instance
	}

	var span trace.Span
	x.whole, span = s.tracer.Start(joinTrace(reqid.With(r.Context(), x.id), r), r.Method, trace.WithSpanKind(trace.SpanKindServer))

	s.seen.inFlight.Inc()
	defer func() {
		p := recover()
		aborted := p == http.ErrAbortHandler //nolint:errorlint // net/http compares it so
		if p != nil && !aborted {
			s.recovered(x, p)
		}
		s.seen.inFlight.Dec()
		s.tell(x, r, span, s.deps.Now().Sub(start))
		if aborted {
			panic(p)
		}
	}()
	s.route(x, r)
}

// requestID takes over the client's id, unless a secret was pasted there: ids
// are logged and echoed.
func requestID(r *http.Request) string {
	sent := r.Header.Get(reqid.Header)
	if sent == "" || redact.Text(sent) != sent {
		return reqid.New()
	}
	return reqid.FromHeader(sent)
}

func (s *Server) recovered(x *exchange, p any) {
	err := fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	if x.status != 0 {
		// Half an answer is out: cut the connection so that the client
		// cannot take it for a whole one.
		x.refusal = fault.From(err)
		_ = http.NewResponseController(x).SetWriteDeadline(time.Now())
		return
	}
	s.refuse(x, err)
}

func (s *Server) tell(x *exchange, r *http.Request, span trace.Span, took time.Duration) {
	if x.refusal != nil && errors.Is(x.refusal, context.Canceled) && r.Context().Err() != nil {
		x.status = clientClosed
	}
	method := knownMethod(r.Method)
	s.seen.requests.WithLabelValues(x.pattern(), method, strconv.Itoa(x.status)).Inc()
	s.seen.duration.WithLabelValues(x.pattern(), method).Observe(took.Seconds())

	if span.IsRecording() {
		span.SetName(method + " " + x.pattern())
		span.SetAttributes(
			attribute.String("http.request.method", method),
			attribute.String("http.route", x.pattern()),
			attribute.Int("http.response.status_code", x.status),
			attribute.String("telapi.team_id", x.who.TeamID),
		)
		if x.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(x.status))
		}
	}
	span.End()

	level := s.logLevel(x)
	if !s.deps.Log.Enabled(x.whole, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", method),
		slog.String("path", r.URL.Path[:min(len(r.URL.Path), maxLoggedPath)]), // never the query: legacy clients put tokens there
		slog.Int("status", x.status),
		slog.Int64("bytes", x.bytes),
		slog.Duration("took", took),
		slog.String("client", x.client.String()),
	}
	if x.who.TeamID != "" {
		attrs = append(attrs, slog.String("team_id", x.who.TeamID), slog.String("subject", x.who.Subject))
	}
	if x.refusal != nil {
		attrs = append(attrs, slog.String("code", string(x.refusal.Code)))
		if x.refusal.Cause != nil {
			attrs = append(attrs, slog.Any("cause", x.refusal.Cause))
		}
	}
	record := slog.NewRecord(s.deps.Now(), level, "request", 0) // finding its line in the source costs more than the rest
	record.AddAttrs(attrs...)
	_ = s.deps.Log.Handler().Handle(x.whole, record)
}

// logLevel keeps probes and scrapes, which come every few seconds, out of the way.
func (s *Server) logLevel(x *exchange) slog.Level {
	broken := x.refusal != nil && x.status < http.StatusBadRequest // after its answer had begun, a socket's too
	switch {
	case broken, x.status >= http.StatusInternalServerError && x.refusal != nil:
		return slog.LevelError
	case x.route != nil && x.route.Tier == "":
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

// observations are the metrics every route has.
type observations struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newObservations(reg prometheus.Registerer) *observations {
	o := &observations{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_http_requests_total", Help: "Requests answered, by route, method and status."},
			[]string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_http_request_duration_seconds", Help: "Time from the request's header to the end of its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
			[]string{"route", "method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_http_requests_in_flight", Help: "Requests being answered now."}),
	}
	reg.MustRegister(o.requests, o.duration, o.inFlight)
	return o
}

// knownMethod keeps a client from making up metric labels.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}
