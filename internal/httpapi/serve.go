package httpapi

import (
	"context"
	"net/http"
	"net/netip"

	"go.opentelemetry.io/otel/trace"

	"telapi/internal/auth"
	"telapi/internal/httpserve"
)

// exchange is one request and its response on their way through the server. It
// is the http.ResponseWriter of all handlers.
type exchange struct {
	httpserve.Response
	ctx       context.Context // the request's, with ID and trace, but without the handler timeout
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
	ctx := joinTrace(httpserve.WithRequestID(r.Context(), x.RequestID), r)
	x.ctx, span = s.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))

	s.metrics.inFlight.Inc()
	defer x.Finish(func() {
		s.metrics.inFlight.Dec()
		s.observe(x, span, s.deps.Now().Sub(start))
	})
	s.dispatch(x, r)
}

// pattern returns the path of the route for metrics and traces.
func (x *exchange) pattern() string {
	if x.route == nil {
		return "unmatched"
	}
	return x.route.Path
}
