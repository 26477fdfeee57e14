// Package httpapi is the HTTP API of the service: one table of routes
// (routes.go), one pipeline for every request (rate limit, authentication, quota,
// handler), and handlers that decode, call the domain and encode.
package httpapi

import (
	"context"
	"log/slog"
	"net"
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

// Deps are the dependencies and settings of a Server.
type Deps struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Tracing  trace.TracerProvider
	Now      func() time.Time

	APIAccess      bool
	PublicURL      string // empty: derived from the request
	TrustedProxies []netip.Prefix
	MetricsToken   redact.Secret
	AnyOrigin      bool // pages of any origin may open sockets, in development
	OpenAPI        []byte
	AsyncAPI       []byte
	Health         func() Health
	Draining       func() bool

	Auth         *auth.Authenticator
	Limits       *ratelimit.Limiter
	Quotas       *teams.Quotas
	Endpoints    *endpoint.Service
	Capabilities []byte // JSON document about the deployment
	Usage        *usage.Service
	Channels     *channel.Service
	Callbacks    *callback.Service
	Speech       *speech.Service
	Media        MediaReader // nil: no media service is configured
	Sessions     *session.Service
	Playground   *Playground // nil: disabled
}

// Server is the API server.
type Server struct {
	deps       Deps
	http       *http.Server
	mux        *http.ServeMux
	tracer     trace.Tracer
	metrics    httpMetrics
	sockets    *socketSet
	prometheus http.Handler // serves /metrics

	playgroundFiles map[string]document
	docsFiles       map[string]document

	streams    context.Context // ends responses that stream until shutdown
	endStreams context.CancelFunc
}

// writeTimeout closes connections of clients that read too slowly. Routes that
// stream extend the deadline themselves.
const writeTimeout = 60 * time.Second

// New returns a server that is ready to serve.
func New(deps Deps) *Server {
	s := &Server{
		deps:       deps,
		tracer:     deps.Tracing.Tracer("telapi/httpapi"),
		metrics:    newHTTPMetrics(deps.Registry),
		sockets:    newSocketSet(deps.Registry),
		prometheus: promhttp.HandlerFor(deps.Registry, promhttp.HandlerOpts{Registry: deps.Registry, ErrorHandling: promhttp.ContinueOnError}),
	}
	if deps.Playground != nil {
		s.playgroundFiles = readFiles(deps.Playground.Files)
		s.docsFiles = readFiles(deps.Playground.Docs)
	}
	s.streams, s.endStreams = context.WithCancel(context.Background())
	s.mux = s.newMux(s.Routes())
	s.http = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true, // OPTIONS * gets the same responses as any other path
		ReadHeaderTimeout:            10 * time.Second,
		ReadTimeout:                  30 * time.Second,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  120 * time.Second,
		MaxHeaderBytes:               32 << 10,
		ErrorLog:                     slog.NewLogLogger(deps.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve accepts connections until Shutdown. It always returns an error, which is
// http.ErrServerClosed after Shutdown.
func (s *Server) Serve(l net.Listener) error { return s.http.Serve(l) }

// Shutdown ends streams, closes sockets with CloseRestart at random times within
// window, and waits for the requests in flight. When ctx ends, it disconnects the
// remaining clients and returns the error of ctx. All sockets have ended when
// Shutdown returns.
func (s *Server) Shutdown(ctx context.Context, window time.Duration) error {
	s.endStreams()
	s.sockets.drain(ctx, window)
	err := s.http.Shutdown(ctx)
	if err != nil {
		_ = s.http.Close()
	}
	s.sockets.close()
	return err
}
