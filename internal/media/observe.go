package media

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
	"telapi/internal/media/fastlane"
	"telapi/internal/reqid"
)

// maxLoggedPath keeps a client from filling the log with one request.
const maxLoggedPath = 256

// ServeHTTP answers one request and tells log and metrics how it went.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	x := &reply{ResponseWriter: w, request: r}
	if r.Body != http.NoBody {
		allowTime(w, 0) // also for skipping a body that nobody wants
	}
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	defer func() {
		if p := recover(); p != nil {
			x.refuse(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
		s.tell(x, r, time.Since(start))
	}()
	if err := s.route(x, r); err != nil {
		x.refuse(err)
	}
}

func (s *Service) tell(x *reply, r *http.Request, took time.Duration) {
	method := knownMethod(r.Method)
	s.seen.requests.WithLabelValues(method, strconv.Itoa(x.status)).Inc()
	s.seen.duration.WithLabelValues(method).Observe(took.Seconds())
	s.seen.sent.Add(float64(x.bytes))
	level := slog.LevelDebug
	if x.status >= http.StatusInternalServerError && x.refusal != nil {
		level = slog.LevelError
	}
	if !s.o.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", method),
		slog.String("path", r.URL.Path[:min(len(r.URL.Path), maxLoggedPath)]),
		slog.Int("status", x.status),
		slog.Int64("bytes", x.bytes),
		slog.Duration("took", took),
		slog.String("client", r.RemoteAddr),
	}
	if x.refusal != nil && x.refusal.Cause != nil {
		attrs = append(attrs, slog.Any("cause", x.refusal.Cause))
	}
	s.o.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

// served hears of an answer from memory.
func (s *Service) served(path string, bytes int) {
	s.store.used(Path(path[len(Prefix):]))
	s.seen.fromMemory.Inc()
	s.seen.sent.Add(float64(bytes))
	if s.o.Log.Enabled(context.Background(), slog.LevelDebug) {
		s.o.Log.Debug("request", "method", http.MethodGet, "path", path, "status", http.StatusOK, "bytes", bytes, "memory", true)
	}
}

// allowTime gives a client as long as this many bytes may take, and who did not
// send them by then a moment to hear of it.
func allowTime(w http.ResponseWriter, bytes int64) {
	deadline := time.Now().Add(bodyTimeout + time.Duration(bytes)*time.Second/slowestRate)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(deadline) // fails on a connection that is gone
	_ = control.SetWriteDeadline(deadline.Add(answerTimeout))
}

// reply is an answer on its way out, and what will be said of it.
type reply struct {
	http.ResponseWriter
	request *http.Request
	status  int
	bytes   int64
	muted   bool
	refusal *fault.Error
}

// refuse answers with the envelope. Once half an answer is out, it cuts the
// connection instead, so that nobody takes it for a whole one.
func (x *reply) refuse(err error) {
	x.refusal = fault.From(err)
	if x.status != 0 {
		_ = http.NewResponseController(x).SetWriteDeadline(time.Now())
		return
	}
	if x.refusal.Code == fault.Unauthorized {
		x.Header().Set("WWW-Authenticate", `Bearer realm="telapi media"`)
	}
	body, err := json.Marshal(x.refusal.Envelope(reqid.FromHeader(x.request.Header.Get(reqid.Header))))
	if err != nil {
		body = nil
	}
	answerWith(x, x.refusal.Code.Status(), "application/json", body)
}

func answerWith(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// WriteHeader notes the status. Where http.ServeContent refuses, with plain text
// or nothing, the envelope takes its place.
func (x *reply) WriteHeader(status int) {
	if refusal := contentRefusals[status]; refusal != nil && x.status == 0 && x.refusal == nil {
		x.refuse(refusal)
		x.muted = true
		return
	}
	if x.status == 0 && status >= http.StatusOK {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *reply) Write(b []byte) (int, error) {
	if x.muted {
		return len(b), nil
	}
	if x.status == 0 {
		x.status = http.StatusOK
	}
	n, err := x.ResponseWriter.Write(b)
	x.bytes += int64(n)
	return n, err
}

// ReadFrom lets the kernel send a file.
func (x *reply) ReadFrom(r io.Reader) (int64, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	n, err := io.Copy(x.ResponseWriter, r)
	x.bytes += n
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (x *reply) Unwrap() http.ResponseWriter { return x.ResponseWriter }

type observations struct {
	requests       *prometheus.CounterVec
	duration       *prometheus.HistogramVec
	received, sent prometheus.Counter
	fromMemory     prometheus.Counter
}

func newObservations(reg prometheus.Registerer, store *Store, lane *fastlane.Lane) *observations {
	moved := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_media_bytes_total", Help: "Bytes of bodies, by direction: stored (in) and sent (out)."}, []string{"direction"})
	o := &observations{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_requests_total", Help: "Requests answered, by method and status."}, []string{"method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_media_request_duration_seconds", Help: "Time from a request's header to the end of its answer; answers from memory are not timed.",
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
		gauge("telapi_media_store_bytes", "Bytes of all objects.", store.bytes.Load),
		gauge("telapi_media_store_objects", "Objects stored.", store.objects.Load),
		gauge("telapi_media_memory_bytes", "Memory of the objects that are answered from it.", func() int64 { return lane.Stats().Bytes }),
		gauge("telapi_media_memory_objects", "Objects in memory.", func() int64 { return lane.Stats().Objects }),
		counter("telapi_media_memory_answers_total", "Answers given from memory.", func() uint64 { return lane.Stats().Hits }),
		counter("telapi_media_evictions_total", "Objects that went to make room.", store.evicted.Load),
	)
	return o
}

// knownMethod keeps a client from making up metric labels.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete, http.MethodPost, http.MethodPatch, http.MethodOptions:
		return m
	}
	return "other"
}
