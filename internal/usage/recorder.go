package usage

import (
	"context"
	"log/slog"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/writebehind"
)

// maxQueued is the number of reports that this process keeps while the stream is
// unreachable.
const maxQueued = 10_000

// Recorder reports the speech requests of this instance.
type Recorder struct {
	stream Stream
	queue  *writebehind.Queue[[]byte]
	log    *slog.Logger
	lost   prometheus.Counter
}

// NewRecorder returns a recorder. Run must run too.
func NewRecorder(stream Stream, log *slog.Logger, reg prometheus.Registerer) *Recorder {
	return &Recorder{stream: stream, log: log,
		lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "telapi_usage_records_lost_total", Help: "Usage reports of this instance lost because the key-value store was unreachable for too long."}),
		queue: writebehind.NewQueue(maxQueued, func([]byte) int { return 1 }, batchSize, func(ctx context.Context, reports [][]byte) error {
			if err := stream.Append(ctx, reports...); err != nil {
				return fault.Unavailable("The key-value store", err) // every error is retried
			}
			return nil
		}, nil)}
}

// Record reports one request. When it returns, the report is on the stream and
// survives this process. If the stream is unreachable, the report is queued and
// sent later with the same ID, so that it counts once even if a response was
// lost.
func (r *Recorder) Record(ctx context.Context, report wire.SpeechReport) {
	report.ID = uuid.NewString()
	raw, err := json.Marshal(report)
	if err != nil || r.stream.Append(context.WithoutCancel(ctx), raw) != nil && !r.queue.Add(raw) {
		r.lost.Inc()
	}
}

// Run sends queued reports until ctx ends, and the rest within a few seconds.
func (r *Recorder) Run(ctx context.Context) {
	if lost := r.queue.Run(ctx); lost > 0 {
		r.lost.Add(float64(lost))
		r.log.ErrorContext(ctx, "usage reports lost at shutdown", "requests", lost)
	}
}
