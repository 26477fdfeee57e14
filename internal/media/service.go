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

// Options are what a media service works with.
type Options struct {
	Root           string
	MaxBytes       int64           // of all objects; 0: no cap
	Unsynced       bool            // changes are not on disk yet when they are answered
	MaxObjectBytes int64           // of one
	MemoryBytes    int64           // of objects that are answered from memory; 0: none is
	UploadTokens   []redact.Secret // any of them permits changes; none: anybody may
	MetricsToken   redact.Secret   // for /metrics; empty: anybody may
	Log            *slog.Logger
	Registry       *prometheus.Registry
}

// Service is the media service: the objects of a Store over HTTP, the plainest
// requests for them answered from memory.
type Service struct {
	o          Options
	store      *Store
	lane       *fastlane.Lane
	server     *http.Server
	prometheus http.Handler // serves /metrics
	metrics    *serviceMetrics
	draining   atomic.Bool
}

// Time-outs that cut clients who send or read a byte now and then to hold a
// connection. One that moves a body has, on top, the time it takes at the slowest
// rate that a reader or writer of audio has an excuse for.
const (
	firstByteTimeout = 10 * time.Second
	bodyTimeout      = 30 * time.Second
	answerTimeout    = 5 * time.Second
	keptAlive        = 120 * time.Second
	slowestRate      = 64 << 10 // bytes a second
	maxHeaderBytes   = 16 << 10
)

// New opens the store and returns the service, ready to serve.
func New(o Options) (*Service, error) {
	s := &Service{o: o, prometheus: promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})}
	if o.MaxBytes > 0 {
		s.o.MaxObjectBytes = min(o.MaxObjectBytes, o.MaxBytes)
	}
	s.lane = fastlane.New(fastlane.Options{MaxBytes: o.MemoryBytes, MaxUpload: s.o.MaxObjectBytes, Load: s.load, Served: s.served})
	change := func(p Path, change func() error) error { return s.lane.Change(Prefix+string(p), change) }
	var err error
	if s.store, err = OpenStore(StoreOptions{Root: o.Root, MaxBytes: o.MaxBytes, Unsynced: o.Unsynced, Log: o.Log, Change: change}); err != nil {
		return nil, err
	}
	s.metrics = newServiceMetrics(o.Registry, s.store, s.lane)
	s.server = &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            firstByteTimeout,
		WriteTimeout:                 bodyTimeout,
		IdleTimeout:                  keptAlive,
		MaxHeaderBytes:               maxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	s.lane.Attach(s.server)
	return s, nil
}

// Serve answers on a listener, over TLS where a configuration is given, until
// Shutdown.
func (s *Service) Serve(l net.Listener, secure *tls.Config) error {
	if err := s.server.Serve(s.lane.Listen(l, secure)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve media: %w", err)
	}
	return nil
}

// Run does what the store needs done while it is served.
func (s *Service) Run(ctx context.Context) { s.store.Run(ctx) }

// Drain has /health answer 503 from now on.
func (s *Service) Drain() { s.draining.Store(true) }

// Shutdown takes no more connections, and lets requests in flight finish or, when
// ctx ends, cuts them off.
func (s *Service) Shutdown(ctx context.Context) error {
	err := errors.Join(s.server.Shutdown(ctx), s.lane.Drain(ctx))
	if err != nil {
		_ = s.server.Close()
	}
	return err
}

// Close lets go of the store.
func (s *Service) Close() { s.store.Close() }

// route finds who answers. Paths are taken as they were sent: none is decoded,
// cleaned or redirected.
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
		return fault.New(fault.Validation, "Objects are put under /media/<shard>/<name>.alaw or .pcm; shard and name are letters, digits, _ and -.")
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
	return fault.New(fault.NotFound, "There is no such object.")
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
