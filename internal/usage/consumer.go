package usage

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/backlog"
	"telapi/internal/fault"
	"telapi/internal/sleep"
)

const (
	batchSize   = 500
	nextWait    = time.Second
	forgetEvery = time.Hour
)

// ReportEntry is a report as it lies on the stream.
type ReportEntry struct {
	ID     string
	Report []byte
}

// Stream holds reports until they are counted, for all instances together.
type Stream interface {
	// Append puts reports on the stream.
	Append(ctx context.Context, reports ...[]byte) error
	// Read returns reports that nobody is counting, limit at the most: those
	// that an instance took and did not settle for a while, else new ones. It
	// waits a while for one to come.
	Read(ctx context.Context, limit int, wait time.Duration) ([]ReportEntry, error)
	// Ack takes what is counted, or refused, off the stream.
	Ack(ctx context.Context, counted []ReportEntry) error
	// Reject takes a report off the stream and puts it aside.
	Reject(ctx context.Context, bad ReportEntry, reason string) error
	// Len tells how many reports are on the stream.
	Len(ctx context.Context) (int64, error)
}

// Consumer counts what is reported on the stream. Any number of instances may
// keep books: what one leaves behind, wherever it dies, another takes up, and the
// store knows what was counted.
type Consumer struct {
	stream Stream
	books  ReportStore
	log    *slog.Logger
	now    func() time.Time
	forgot time.Time // Run's alone

	outcomes *prometheus.CounterVec
	waiting  prometheus.Gauge
}

// NewConsumer returns a consumer.
func NewConsumer(stream Stream, books ReportStore, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Consumer {
	auto := promauto.With(reg)
	return &Consumer{stream: stream, books: books, log: log, now: now,
		outcomes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_usage_reports_total", Help: "Reports of speech, by outcome: counted, repeated (counted before) or refused."}, []string{"outcome"}),
		waiting: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_usage_reports_waiting", Help: "Reports of speech that are not counted yet, of all instances."}),
	}
}

// Run counts until ctx ends, and then what is there already: an embedded stream
// ends with its process.
func (b *Consumer) Run(ctx context.Context) {
	pauses := backlog.Pauses()
	for ctx.Err() == nil {
		_, err := b.round(ctx, nextWait)
		if err == nil {
			pauses.Reset()
			continue
		}
		if ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) { // stores say themselves that they are away
			b.log.ErrorContext(ctx, "reports of speech were not counted", "error", err)
		}
		_ = sleep.For(ctx, pauses.NextBackOff())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), backlog.LastWrite)
	defer cancel()
	for taken, err := b.round(last, 0); err == nil && taken > 0; {
		taken, err = b.round(last, 0)
	}
}

func (b *Consumer) round(ctx context.Context, wait time.Duration) (taken int, err error) {
	if now := b.now(); now.Sub(b.forgot) > forgetEvery {
		if err := b.books.DeleteReports(ctx, now.Add(-remembered)); err != nil {
			return 0, err
		}
		b.forgot = now
	}
	next, err := b.stream.Read(ctx, batchSize, wait)
	if err == nil {
		err = b.count(ctx, next)
	}
	if err != nil {
		return 0, err
	}
	waiting, err := b.stream.Len(ctx)
	b.waiting.Set(float64(waiting))
	return len(next), err
}

// claim is a delivery that says what was spoken.
type claim struct {
	ReportEntry
	spoken wire.SpeechReport
}

// count settles every delivery: counted, known already, or refused. It waits for
// a database that is away; should another instance take the same reports up
// meanwhile, one of the two counts them.
func (b *Consumer) count(ctx context.Context, taken []ReportEntry) error {
	var good []claim
	for _, d := range taken {
		spoken, err := readReport(d.Report, b.now())
		if err == nil {
			good = append(good, claim{d, spoken})
		} else if err := b.refuse(ctx, d, err.Error()); err != nil {
			return err
		}
	}
	if len(good) == 0 {
		return nil
	}
	err := backlog.Write(ctx, good, b.enter, func(bad claim, err error) error { return b.refuse(ctx, bad.ReportEntry, err.Error()) })
	if err != nil {
		return err
	}
	return b.stream.Ack(ctx, taken)
}

func (b *Consumer) enter(ctx context.Context, claims []claim) error {
	reports := make([]wire.SpeechReport, len(claims))
	for i, c := range claims {
		reports[i] = c.spoken
	}
	counted, err := b.books.AddReports(ctx, reports, b.now())
	if err == nil {
		b.outcomes.WithLabelValues("counted").Add(float64(counted))
		b.outcomes.WithLabelValues("repeated").Add(float64(len(claims) - counted))
	}
	return err
}

func (b *Consumer) refuse(ctx context.Context, d ReportEntry, reason string) error {
	if err := b.stream.Reject(ctx, d, reason); err != nil {
		return err
	}
	b.outcomes.WithLabelValues("refused").Inc()
	b.log.ErrorContext(ctx, "a report of speech was refused and put aside", "position", d.ID, "reason", reason)
	return nil
}
