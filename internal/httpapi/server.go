// Package httpapi is the HTTP surface of the service: one table of routes
// (routes.go), one way through it for every request (observe, limit,
// authenticate, handle), and handlers that decode, call the domain and encode.
package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/auth"
	"telapi/internal/callback"
	"telapi/internal/channel"
	"telapi/internal/endpoint"
	"telapi/internal/ratelimit"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/internal/speech"
	teams "telapi/internal/team"
	"telapi/internal/usage"
)

// Deps is everything the surface stands on.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracing  trace.TracerProvider
	Now      func() time.Time

	APIAccess      bool
	PublicURL      string // empty: derived from the request
	TrustedProxies []netip.Prefix
	MetricsToken   redact.Secret
	OpenAPI        []byte
	AsyncAPI       []byte
	Health         func() Health
	Draining       func() bool

	Auth         *auth.Authenticator
	Limits       *ratelimit.Limiter
	Quotas       *teams.Quotas
	Endpoints    *endpoint.Service
	Capabilities []byte // as JSON
	Usage        *usage.Reporter
	Channels     *channel.Service
	Callbacks    *callback.Service
	Speech       *speech.Service
	AnyOrigin    bool // development: sockets from any page
	Sessions     *session.Service
	Playground   *Playground // nil: none
}

// Server answers the service's HTTP requests.
type Server struct {
	deps    Deps
	mux     *http.ServeMux
	tracer  trace.Tracer
	metrics httpMetrics
	sockets *sockets

	prometheus http.Handler // serves /metrics

	playgroundFiles map[string]page
	docsFiles       map[string]page

	streams    context.Context // of answers that go on until the server drains
	endStreams context.CancelFunc
}

// New returns the surface, ready to serve.
func New(deps Deps) *Server {
	s := &Server{
		deps:       deps,
		metrics:    newHTTPMetrics(deps.Registry),
		sockets:    newSockets(deps.Registry),
		tracer:     deps.Tracing.Tracer("telapi/httpapi"),
		prometheus: promhttp.HandlerFor(deps.Registry, promhttp.HandlerOpts{Registry: deps.Registry, ErrorHandling: promhttp.ContinueOnError}),
	}
	if deps.Playground != nil {
		s.playgroundFiles = readPages(deps.Playground.Files)
		s.docsFiles = readPages(deps.Playground.Docs)
	}
	s.streams, s.endStreams = context.WithCancel(context.Background())
	s.mux = s.newMux(s.Routes())
	return s
}

// Time-outs that defeat clients who send or read a byte now and then to hold a
// connection. Routes that stream for long extend their own write deadline.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 60 * time.Second
	idleTimeout   = 120 * time.Second
	maxHeader     = 32 << 10
)

// HTTPServer wraps the surface in a net/http server with its time-outs.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler: s,
		// OPTIONS * is answered by the table like everything else.
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
}
