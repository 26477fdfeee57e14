package media

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/httpserve"
	"telapi/internal/media/fastlane"
)

// ServeHTTP answers one request and records the outcome in the access log and
// the metrics.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	x := &httpserve.Response{ResponseWriter: w, Request: r, Realm: "telapi media", Errors: contentErrors}
	if r.Body != http.NoBody {
		extendDeadline(w, 0) // also for skipping a body that is not read
	}
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	defer x.Finish(func() { s.observe(x, time.Since(start)) })
	if err := s.route(x, r); err != nil {
		x.Fail(err)
	}
}

func (s *Service) observe(x *httpserve.Response, took time.Duration) {
	method := httpserve.Method(x.Request)
	s.metrics.requests.WithLabelValues(method, strconv.Itoa(x.Status)).Inc()
	s.metrics.duration.WithLabelValues(method).Observe(took.Seconds())
	s.metrics.sent.Add(float64(x.Bytes))
	x.Log(x.Request.Context(), s.o.Log, slog.LevelDebug, took, x.Request.RemoteAddr)
}

// served records a response from memory.
func (s *Service) served(path string, bytes int) {
	s.store.used(Path(path[len(Prefix):]))
	s.metrics.fromMemory.Inc()
	s.metrics.sent.Add(float64(bytes))
	if s.o.Log.Enabled(context.Background(), slog.LevelDebug) {
		s.o.Log.Debug("request", "method", http.MethodGet, "path", path, "status", http.StatusOK, "bytes", bytes, "memory", true)
	}
}

// extendDeadline gives a client the time that it may take to send or receive a
// body of this size, and a little more to receive the error if it is too slow.
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
	fromMemory     prometheus.Counter
}

func newServiceMetrics(reg prometheus.Registerer, store *Store, lane *fastlane.Lane) *serviceMetrics {
	moved := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_media_bytes_total", Help: "Bytes of request bodies stored (in) and response bodies sent (out)."}, []string{"direction"})
	o := &serviceMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_requests_total", Help: "Requests by method and status."}, []string{"method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_media_request_duration_seconds", Help: "Duration of requests by method. Responses of the fast path are not measured.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}}, []string{"method"}),
		received: moved.WithLabelValues("in"),
		sent:     moved.WithLabelValues("out"),
	}
	o.fromMemory = o.requests.WithLabelValues(http.MethodGet, strconv.Itoa(http.StatusOK))
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	reg.MustRegister(o.requests, o.duration, moved,
		gauge("telapi_media_store_bytes", "Bytes of all stored blobs.", store.bytes.Load),
		gauge("telapi_media_store_objects", "Number of stored blobs.", store.objects.Load),
		gauge("telapi_media_memory_bytes", "Bytes of the blobs in the memory cache.", func() int64 { return lane.Stats().Bytes }),
		gauge("telapi_media_memory_objects", "Number of blobs in the memory cache.", func() int64 { return lane.Stats().Objects }),
		counter("telapi_media_memory_answers_total", "Responses sent from the memory cache.", func() uint64 { return lane.Stats().Hits }),
		counter("telapi_media_evictions_total", "Blobs evicted to stay below the size limit.", store.evicted.Load),
	)
	return o
}
