// Package httpapi is the HTTP API of the service: one table of routes
// (routes.go), one pipeline for every request (rate limit, authentication, quota,
// handler), and handlers that decode, call the domain and encode.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/auth"
	"telapi/internal/callback"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/internal/redact"
	"telapi/internal/runtimeapi"
	"telapi/internal/session"
	"telapi/internal/socket"
	"telapi/internal/speech"
	"telapi/internal/team"
)

// Deps are the dependencies and settings of a Server.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracing  trace.TracerProvider
	Now      func() time.Time

	APIAccess      bool
	MaxSockets     int    // open WebSockets
	TeamShare      int    // percentage of each budget of the instance that a team may use
	PublicURL      string // empty: derived from the request
	TrustedProxies []netip.Prefix
	MetricsToken   redact.Secret
	ConsoleOrigins []string // of pages that may call the REST API, as browsers send them
	AnyOrigin      bool     // pages of any origin may open sockets, in development
	OpenAPI        []byte
	AsyncAPI       []byte
	Health         func() Health
	Draining       func() bool

	Auth         *auth.Authenticator
	Limits       *ratelimit.Limiter
	Teams        *team.Catalog
	Admin        Admin
	Endpoints    *team.EndpointCatalog
	Capabilities []byte // JSON document about the deployment
	Usage        speech.UsageStore
	Channels     *channel.Service
	Runtimes     *runtimeapi.Service
	Callbacks    *callback.Service
	Speech       *speech.Service
	Media        MediaReader // nil: no media service is configured
	Sessions     *session.Service
	Playground   *Playground // nil: disabled
	Instances    Instances   // nil unless telapi dev runs several
}

// Server is the API server.
type Server struct {
	deps       Deps
	http       *http.Server
	mux        *http.ServeMux
	tracer     trace.Tracer
	metrics    httpMetrics
	sockets    *socket.Set
	rejections *rejectionLog
	prometheus http.Handler // serves /metrics

	largeCallbacks chan struct{} // one element for each large callback in progress

	// What teams share.
	smallBodies, largeBodies *ratelimit.Budget // bytes of the bodies of requests in progress
	feeds, speechStreams     *ratelimit.Budget // responses in progress
	audio                    *ratelimit.Budget // bytes of audio in responses that are being sent
	streamedBodies           *ratelimit.Budget // bytes of answers that are arriving
	callbackBodies           *ratelimit.Budget // bytes of bodies whose team is not known yet, shared by addresses
	scrapes                  *ratelimit.Budget // responses in progress, shared by addresses

	streamsCtx context.Context // of responses that stream until shutdown
	endStreams context.CancelFunc

	listener    atomic.Pointer[net.Listener]
	served      chan struct{} // closed when Serve has ended
	connections busyConnections
}

// writeTimeout closes connections of clients that read too slowly. Routes that
// stream extend the deadline themselves.
const writeTimeout = 60 * time.Second

// maxLargeCallbacks is the maximum number of large callbacks that are decoded and delivered
// at a time: decoded, a body needs a multiple of its length. One CPU, if there are several,
// is left for other requests, which would wait for milliseconds.
const maxLargeCallbacks = 4

// streamWriteTimeout bounds one write of a response that streams, of up to 32 KiB.
const streamWriteTimeout = 10 * time.Second

// Responses of an instance that are in progress.
const (
	maxFeeds         = 32
	maxSpeechStreams = 512
	maxScrapes       = 64
	scrapesShare     = 10 // percent, of an address
)

// New returns a server that is ready to serve.
func New(deps Deps) *Server {
	s := &Server{
		deps:        deps,
		tracer:      deps.Tracing.Tracer("telapi/httpapi"),
		metrics:     newHTTPMetrics(deps.Registry),
		rejections:  &rejectionLog{log: deps.Log},
		served:      make(chan struct{}),
		connections: busyConnections{open: map[net.Conn]struct{}{}},
		prometheus:  promhttp.HandlerFor(deps.Registry, promhttp.HandlerOpts{Registry: deps.Registry, ErrorHandling: promhttp.ContinueOnError}),
	}
	freeCPUs := max(1, runtime.GOMAXPROCS(0)-1)
	s.largeCallbacks = make(chan struct{}, min(maxLargeCallbacks, freeCPUs))
	newBudget := func(name, unit string, total int64) *ratelimit.Budget {
		return ratelimit.NewBudget(deps.Registry, name, unit, total, deps.TeamShare)
	}
	s.callbackBodies = ratelimit.NewBudget(deps.Registry, "callback_body_bytes", "bytes for callbacks up to 16 KiB", callbackBodyBudget, callbackBodyShare)
	s.smallBodies = newBudget("small_body_bytes", "bytes for bodies up to 16 KiB", smallBodyBudget)
	s.largeBodies = newBudget("large_body_bytes", "bytes for bodies over 16 KiB", largeBodyBudget)
	s.streamedBodies = newBudget("streamed_body_bytes", "bytes for answers that stream", streamBudget)
	s.feeds = newBudget("playground_feeds", "feeds", maxFeeds)
	s.speechStreams = newBudget("speech_streams", "responses that stream audio", maxSpeechStreams)
	s.audio = newBudget("audio_bytes", "bytes for responses with audio", audioBudget)
	s.scrapes = ratelimit.NewBudget(deps.Registry, "scrapes", "responses of /metrics", maxScrapes, scrapesShare)
	s.sockets = socket.NewSet(deps.Registry, newBudget("sockets", "WebSockets", int64(deps.MaxSockets)), newBudget("queued_bytes", "bytes for clients that read slowly", socket.QueueBudget))
	s.streamsCtx, s.endStreams = context.WithCancel(context.Background())
	s.mux = s.newMux(s.Routes())
	s.http = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true, // OPTIONS * gets the same responses as any other path
		ReadHeaderTimeout:            10 * time.Second,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  120 * time.Second,
		MaxHeaderBytes:               32 << 10,
		ConnState:                    s.connections.update,
		ErrorLog:                     slog.NewLogLogger(deps.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// exchange is one request with its response. It is the http.ResponseWriter of all
// handlers.
type exchange struct {
	httpserve.Response
	ctx         context.Context // request context with ID and trace, without the handler timeout
	route       *Route          // nil: no route matches
	client      netip.Addr
	principal   auth.Principal
	params      url.Values         // of the query, if the route needs a credential
	fromConsole bool               // the page has one of CONSOLE_ORIGINS
	token       *session.CallToken // of a handshake; see Server.callToken
	holder      string             // team, or address of a callback, whose share of the budgets is used; empty: not known
	body        reservation        // memory of the body
	isCallback  bool               // its body counts for the address until its team is known
	isStreamed  bool               // its body arrives bit by bit, at the pace of the provider
	isTruncated bool               // the body is incomplete and no more of it is expected
}

// ServeHTTP assigns the request ID, routes the request, and records the outcome
// in the access log, the metrics and the trace.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.forwards(r) {
		s.forward(w, r)
		return
	}
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

	x.ctx = s.continueTrace(httpserve.WithRequestID(r.Context(), x.RequestID), x, r)
	span := trace.SpanFromContext(x.ctx) // of the caller, which is not recorded here
	if !isProbe(r) {
		x.ctx, span = s.tracer.Start(x.ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
	}

	s.metrics.inFlight.Inc()
	defer x.RecoverAndFinish(func() {
		s.metrics.inFlight.Dec()
		x.body.release()
		s.observe(x, span, s.deps.Now().Sub(start))
	})
	s.dispatch(x, r)
}

// isProbe reports whether a request is a health check or a scrape. They are frequent
// and make no spans.
func isProbe(r *http.Request) bool { return r.URL.Path == "/health" || r.URL.Path == "/metrics" }

// Recorded when the client disconnects before it gets its response. They are never sent.
const (
	statusClientClosed            = 499
	codeClientClosed   fault.Code = "CLIENT_CLOSED"
)

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
	var code fault.Code // of a request that was rejected or cut
	if x.Err != nil {
		code = x.Err.Code
		if errors.Is(x.Err, context.Canceled) && x.Request.Context().Err() != nil {
			x.Status, code = statusClientClosed, codeClientClosed
		}
	}
	method, pattern, level := httpserve.Method(x.Request), "unmatched", slog.LevelInfo
	if x.route != nil {
		pattern = x.route.Path
		if x.route.Tier == unlimited {
			level = slog.LevelDebug // health checks and scrapes, which have no rate limit, are frequent
		}
	}
	s.metrics.requests.WithLabelValues(pattern, method, strconv.Itoa(x.Status)).Inc()
	if !x.isStreamed {
		s.metrics.duration.WithLabelValues(pattern, method).Observe(elapsed.Seconds())
	}

	if span.IsRecording() {
		span.SetName(method + " " + pattern)
		span.SetAttributes(
			attribute.String("http.request.method", method),
			attribute.String("http.route", pattern),
			attribute.Int("http.response.status_code", x.Status),
		)
		if x.principal.TeamID != "" {
			span.SetAttributes(attribute.String("telapi.team_id", x.principal.TeamID))
		}
		if x.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(x.Status))
		}
	}
	span.End()

	if code != "" && code != fault.Internal && !s.rejections.admit(x.client, code) {
		return
	}
	var attrs []slog.Attr
	if x.principal.TeamID != "" {
		attrs = []slog.Attr{slog.String("team_id", x.principal.TeamID), slog.String("subject", x.principal.Subject)}
	}
	x.Log(x.ctx, s.deps.Log, level, elapsed, x.client.String(), attrs...)
}
