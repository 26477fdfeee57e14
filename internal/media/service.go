package media

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/media/fastlane"
	"telapi/internal/redact"
)

// Options configure a Service.
type Options struct {
	Root           string
	MaxBytes       int64           // of all blobs; 0: unlimited
	Unsynced       bool            // don't wait until changes are on disk
	MaxObjectBytes int64           // of one blob
	MemoryBytes    int64           // of blobs cached in memory; 0: none
	UploadTokens   []redact.Secret // any of them allows changes; none: no token is required
	MetricsToken   redact.Secret   // for /metrics; empty: no token is required
	Log            *slog.Logger
	Registry       *prometheus.Registry
}

// Service is the media service. It serves the blobs of a Store over HTTP, simple
// requests on a fast path.
type Service struct {
	o          Options
	store      *Store
	fastPath   *fastlane.Lane
	server     *http.Server
	prometheus http.Handler // serves /metrics
	metrics    *serviceMetrics
	draining   atomic.Bool
}

// Timeouts against clients that occupy a connection by sending or reading very
// slowly. The transfer of a body gets additional time, at minBytesPerSecond.
const (
	headerReadTimeout = 10 * time.Second
	bodyTimeout       = 30 * time.Second
	responseTimeout   = 5 * time.Second
	idleTimeout       = 120 * time.Second
	minBytesPerSecond = 64 << 10
	maxHeaderBytes    = 16 << 10
)

// New opens the store and returns a service.
func New(o Options) (*Service, error) {
	s := &Service{o: o, prometheus: promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})}
	if o.MaxBytes > 0 {
		s.o.MaxObjectBytes = min(o.MaxObjectBytes, o.MaxBytes)
	}
	s.fastPath = fastlane.New(fastlane.Options{MaxBytes: o.MemoryBytes, MaxUpload: s.o.MaxObjectBytes, Load: s.load, Served: s.served})
	change := func(p Path, change func() error) error { return s.fastPath.Change(Prefix+string(p), change) }
	var err error
	if s.store, err = OpenStore(StoreOptions{Root: o.Root, MaxBytes: o.MaxBytes, Unsynced: o.Unsynced, Log: o.Log, Change: change}); err != nil {
		return nil, err
	}
	s.metrics = newServiceMetrics(o.Registry, s.store, s.fastPath)
	s.server = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerReadTimeout,
		WriteTimeout:                 bodyTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	s.fastPath.Attach(s.server)
	return s, nil
}

// Serve serves a listener until Shutdown, with TLS if secure is not nil.
func (s *Service) Serve(l net.Listener, secure *tls.Config) error {
	if err := s.server.Serve(s.fastPath.Listen(l, secure)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve media: %w", err)
	}
	return nil
}

// Run runs the background work of the store until ctx ends.
func (s *Service) Run(ctx context.Context) { s.store.Run(ctx) }

// Drain makes /health return 503.
func (s *Service) Drain() { s.draining.Store(true) }

// Shutdown stops accepting connections and waits for active requests. It cuts
// them off when ctx ends.
func (s *Service) Shutdown(ctx context.Context) error {
	err := errors.Join(s.server.Shutdown(ctx), s.fastPath.Drain(ctx))
	if err != nil {
		_ = s.server.Close()
	}
	return err
}

// Close closes the store.
func (s *Service) Close() { s.store.Close() }

// route dispatches a request. It uses the path as sent, without decoding,
// cleaning or redirecting.
func (s *Service) route(x *httpserve.Response, r *http.Request) error {
	path := r.URL.EscapedPath()
	switch {
	case path == "/health":
		return readOnly(x, r, s.health)
	case path == "/metrics":
		return readOnly(x, r, s.scrape)
	case path == strings.TrimSuffix(Prefix, "/") && isRead(r) && s.mayChange(r):
		return s.list(x, r)
	}
	change := r.Method == http.MethodPut || r.Method == http.MethodDelete
	if change && !s.mayChange(r) {
		return fault.New(fault.Unauthorized, "Send the upload token as a bearer token.")
	}
	p, ok := parseURLPath(path)
	switch {
	case !ok && r.Method == http.MethodPut:
		return fault.New(fault.Validation, "Invalid path: use /media/<shard>/<name>.alaw or .pcm. Shard and name consist of letters, digits, _ and -.")
	case !ok:
		return notFound()
	case isRead(r):
		return s.get(x, r, p)
	case r.Method == http.MethodPut:
		return s.put(x, r, p)
	case r.Method == http.MethodDelete:
		return s.delete(x, r, p)
	}
	return httpserve.MethodNotAllowed(x, "GET, HEAD, PUT, DELETE")
}

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

func readOnly(x *httpserve.Response, r *http.Request, handle func(*httpserve.Response, *http.Request) error) error {
	if !isRead(r) {
		return httpserve.MethodNotAllowed(x, "GET, HEAD")
	}
	return handle(x, r)
}

func notFound() error {
	return fault.New(fault.NotFound, "Blob not found.")
}

func (s *Service) health(x *httpserve.Response, _ *http.Request) error {
	text, status := "ok", http.StatusOK
	if s.draining.Load() {
		text, status = "draining", http.StatusServiceUnavailable
	}
	x.WriteBytes(status, "text/plain; charset=utf-8", []byte(text))
	return nil
}

func (s *Service) scrape(x *httpserve.Response, r *http.Request) error {
	if want := s.o.MetricsToken; want != "" && !httpserve.HasBearer(r, want) {
		return fault.New(fault.Unauthorized, "Send METRICS_TOKEN as a bearer token.")
	}
	s.prometheus.ServeHTTP(x, r)
	return nil
}

func (s *Service) mayChange(r *http.Request) bool {
	return len(s.o.UploadTokens) == 0 || httpserve.HasBearer(r, s.o.UploadTokens...)
}
