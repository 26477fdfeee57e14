package usage

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	maxKept   = 10_000          // receipts that wait for the stream in this process
	lastWrite = 5 * time.Second // how long the rest may take when the service ends
)

// Recorder reports the speech of this instance's own requests, on the stream
// that runtimes report on.
type Recorder struct {
	stream Stream
	log    *slog.Logger
	lost   prometheus.Counter
	arrive chan struct{}

	mu   sync.Mutex
	kept [][]byte
}

// NewRecorder returns a recorder.
func NewRecorder(stream Stream, log *slog.Logger, reg prometheus.Registerer) *Recorder {
	r := &Recorder{stream: stream, log: log, arrive: make(chan struct{}, 1), lost: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "telapi_usage_records_lost_total", Help: "Speech of this instance that was not reported, because the key-value store was away for too long."})}
	reg.MustRegister(r.lost)
	return r
}

// Record reports one request: when it returns, the report is on the stream and
// outlives this process. While the stream is away it is kept here and sent later,
// under the same id, so that one whose answer was lost counts once.
func (r *Recorder) Record(ctx context.Context, e Entry) {
	report, err := Receipt{uuid.NewString(), e}.report()
	if err == nil {
		err = r.stream.Add(context.WithoutCancel(ctx), report)
	}
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == maxKept || report == nil {
		r.lost.Inc()
		return
	}
	r.kept = append(r.kept, report)
	select {
	case r.arrive <- struct{}{}:
	default:
	}
}

// Run sends what was kept until ctx ends, and what is left then, for a few
// seconds.
func (r *Recorder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-r.arrive:
			r.send(ctx)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	r.send(last)
	r.mu.Lock()
	defer r.mu.Unlock()
	if left := len(r.kept); left > 0 {
		r.lost.Add(float64(left))
		r.log.ErrorContext(ctx, "speech was not reported before the end", "requests", left)
	}
}

// send tries until nothing is kept or ctx ends.
func (r *Recorder) send(ctx context.Context) {
	pauses := newPauses()
	for ctx.Err() == nil {
		r.mu.Lock()
		batch := r.kept[:min(len(r.kept), batchSize)]
		r.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if r.stream.Add(ctx, batch...) != nil {
			select {
			case <-time.After(pauses.NextBackOff()):
			case <-ctx.Done():
			}
			continue
		}
		r.mu.Lock()
		r.kept = r.kept[len(batch):]
		r.mu.Unlock()
	}
}
