package media

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/media/internal/fastlane"
	"telapi/internal/redact"
)

// Options configure a Service.
type Options struct {
	Root           string
	MaxBytes       int64           // of all blobs; 0 for no limit
	Unsynced       bool            // don't wait until changes are on disk
	MaxObjectBytes int64           // of one blob
	MemoryBytes    int64           // of blobs cached in memory; 0 for no cache
	UploadTokens   []redact.Secret // each allows changes; without any, changes need no token
	MetricsToken   redact.Secret   // for /metrics; if empty, /metrics needs no token
	Log            *slog.Logger
	Registry       *prometheus.Registry
}

// Service is the media service. It serves the blobs of a Store over HTTP. Simple
// requests are served by the fast path.
type Service struct {
	options    Options
	store      *Store
	fastPath   *fastlane.FastPath
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
	if o.MaxBytes > 0 {
		o.MaxObjectBytes = min(o.MaxObjectBytes, o.MaxBytes)
	}
	s := &Service{options: o, prometheus: promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})}
	s.fastPath = fastlane.New(fastlane.Options{
		MaxBytes: o.MemoryBytes, MaxUpload: o.MaxObjectBytes, AcceptHost: s.acceptsHost, Load: s.load, Served: s.served})
	var err error
	if s.store, err = OpenStore(o, func(p Path, step func() error) error { return s.fastPath.Change(Prefix+string(p), step) }); err != nil {
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
	if err := s.server.Serve(httpserve.Listen(s.server, s.fastPath.Listen(l, secure), s.options.Log)); !errors.Is(err, http.ErrServerClosed) {
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
func (s *Service) route(w *httpserve.Response, r *http.Request) error {
	path := r.URL.EscapedPath()
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case !s.acceptsHost(r.Host):
		return errForeignHost
	case (path == "/health" || path == "/metrics") && !isRead:
		return httpserve.MethodNotAllowed(w, "GET, HEAD")
	case path == "/health":
		return s.health(w)
	case path == "/metrics":
		return s.scrape(w, r)
	case path+"/" == Prefix && isRead && s.mayChange(r): // otherwise it is not found
		return s.list(w, r)
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
		return errNotFound
	case isRead:
		return s.get(w, r, p)
	case r.Method == http.MethodPut:
		return s.put(w, r, p)
	case r.Method == http.MethodDelete:
		return s.delete(w, r, p)
	}
	return httpserve.MethodNotAllowed(w, "GET, HEAD, PUT, DELETE")
}

var errForeignHost = fault.New(fault.Forbidden, "Use localhost or a loopback address as the host. To use another name, set MEDIA_UPLOAD_TOKEN.")

func (s *Service) health(w *httpserve.Response) error {
	if s.draining.Load() {
		return fault.New(fault.ServiceUnavailable, "The media service is shutting down.").WithRetryAfter(time.Second)
	}
	w.WriteBytes(http.StatusOK, "text/plain; charset=utf-8", []byte("ok"))
	return nil
}

func (s *Service) scrape(w *httpserve.Response, r *http.Request) error {
	if want := s.options.MetricsToken; want != "" && !httpserve.HasBearer(r, want) {
		return fault.New(fault.Unauthorized, "Send METRICS_TOKEN as a bearer token.")
	}
	s.prometheus.ServeHTTP(w, r)
	return nil
}

// acceptsHost prevents DNS rebinding: a page could let its own name resolve to this
// machine and use a service without a token. Such a service listens on loopback only.
func (s *Service) acceptsHost(host string) bool {
	return len(s.options.UploadTokens) > 0 || httpserve.IsLocalHost(host)
}

func (s *Service) mayChange(r *http.Request) bool {
	return len(s.options.UploadTokens) == 0 || httpserve.HasBearer(r, s.options.UploadTokens...)
}

// ServeHTTP answers one request and records the outcome in the access log and
// the metrics.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	resp := &httpserve.Response{ResponseWriter: w, Request: r, Realm: "telapi media", ErrorsByStatus: contentErrors}
	if r.Body != http.NoBody {
		extendDeadline(w, 0) // limits also the time to skip a body that no handler reads
	}
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	defer resp.RecoverAndFinish(func() { s.observe(resp, time.Since(start)) })
	if err := s.route(resp, r); err != nil {
		resp.Fail(err)
	}
}

func (s *Service) observe(w *httpserve.Response, took time.Duration) {
	method := httpserve.Method(w.Request)
	s.metrics.requests.WithLabelValues(method, strconv.Itoa(w.Status)).Inc()
	s.metrics.duration.WithLabelValues(method).Observe(took.Seconds())
	s.metrics.sent.Add(float64(w.Bytes))
	ctx := w.Request.Context()
	if w.RequestID != "" { // the client has received it
		ctx = httpserve.WithRequestID(ctx, w.RequestID)
	}
	w.Log(ctx, s.options.Log, slog.LevelDebug, took, w.Request.RemoteAddr)
}

// served records a response from memory.
func (s *Service) served(path string, bytes int) {
	s.store.recordAccess(Path(path[len(Prefix):]))
	s.metrics.fromMemory.Inc()
	s.metrics.sent.Add(float64(bytes))
	if s.options.Log.Enabled(context.Background(), slog.LevelDebug) {
		s.options.Log.Debug("request", "method", http.MethodGet, "path", path, "status", http.StatusOK, "bytes", bytes, "memory", true)
	}
}

// extendDeadline sets the deadlines to send or receive a body of this size. The
// deadline for the response is later, so that a client that sends too slowly
// receives the error.
func extendDeadline(w http.ResponseWriter, size int64) {
	deadline := time.Now().Add(bodyTimeout + time.Duration(size)*time.Second/minBytesPerSecond)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(deadline) // fails only if the connection is closed
	_ = control.SetWriteDeadline(deadline.Add(responseTimeout))
}

type serviceMetrics struct {
	requests       *prometheus.CounterVec
	duration       *prometheus.HistogramVec
	received, sent prometheus.Counter
	fromMemory     prometheus.Counter // of requests
}

func newServiceMetrics(reg prometheus.Registerer, store *Store, fastPath *fastlane.FastPath) *serviceMetrics {
	transferred := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_media_bytes_total", Help: "Bytes of request bodies stored (in) and response bodies sent (out)."}, []string{"direction"})
	m := &serviceMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_requests_total", Help: "Requests by method and status."}, []string{"method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_media_request_duration_seconds", Help: "Duration of requests by method. Responses of the fast path are not measured.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}}, []string{"method"}),
		received: transferred.WithLabelValues("in"),
		sent:     transferred.WithLabelValues("out"),
	}
	m.fromMemory = m.requests.WithLabelValues(http.MethodGet, strconv.Itoa(http.StatusOK))
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	reg.MustRegister(m.requests, m.duration, transferred,
		gauge("telapi_media_store_bytes", "Bytes of all stored blobs.", store.bytes.Load),
		gauge("telapi_media_store_objects", "Number of stored blobs.", store.objects.Load),
		gauge("telapi_media_memory_bytes", "Bytes of the blobs in the memory cache.", func() int64 { return fastPath.Stats().Bytes }),
		gauge("telapi_media_memory_objects", "Number of blobs in the memory cache.", func() int64 { return fastPath.Stats().Objects }),
		counter("telapi_media_memory_answers_total", "Responses sent from the memory cache.", func() uint64 { return fastPath.Stats().Hits }),
		counter("telapi_media_evictions_total", "Blobs evicted to stay below the size limit.", store.evicted.Load),
	)
	return m
}
