package usage

import (
	"context"
	"log/slog"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/backlog"
	"telapi/internal/fault"
)

const maxKept = 10_000 // reports that wait for the stream in this process

// Recorder reports the speech of this instance's own requests, on the stream
// that runtimes report on.
type Recorder struct {
	stream Stream
	kept   *backlog.Queue[[]byte]
	log    *slog.Logger
	lost   prometheus.Counter
}

// NewRecorder returns a recorder.
func NewRecorder(stream Stream, log *slog.Logger, reg prometheus.Registerer) *Recorder {
	r := &Recorder{stream: stream, log: log, lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
		Name: "telapi_usage_records_lost_total", Help: "Speech of this instance that was not reported, because the key-value store was away for too long."})}
	r.kept = backlog.NewQueue(maxKept, batchSize, func(ctx context.Context, reports [][]byte) error {
		if err := stream.Append(ctx, reports...); err != nil {
			return fault.Unavailable("The key-value store", err) // whatever it is: none of these is given up
		}
		return nil
	}, nil)
	return r
}

// Record reports one request: when it returns, the report is on the stream and
// outlives this process. While the stream is away it is kept here and sent later,
// under the same id, so that one whose answer was lost counts once.
func (r *Recorder) Record(ctx context.Context, spoken wire.SpeechReport) {
	spoken.ID = uuid.NewString()
	report, err := json.Marshal(spoken)
	if err != nil || r.stream.Append(context.WithoutCancel(ctx), report) != nil && !r.kept.Add(report, 1) {
		r.lost.Inc()
	}
}

// Run sends what was kept until ctx ends, and what is left then, for a few
// seconds.
func (r *Recorder) Run(ctx context.Context) {
	if left := r.kept.Run(ctx); left > 0 {
		r.lost.Add(float64(left))
		r.log.ErrorContext(ctx, "speech was not reported before the end", "requests", left)
	}
}
