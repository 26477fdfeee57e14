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
	"telapi/internal/pause"
)

const (
	batchSize   = 500
	nextWait    = time.Second
	forgetEvery = time.Hour
)

// Delivery is a report as it lies on the stream.
type Delivery struct {
	Position string
	Report   []byte
}

// Stream holds reports until they are counted, for all instances together.
type Stream interface {
	// Add puts reports on the stream.
	Add(ctx context.Context, reports ...[]byte) error
	// Next returns reports that nobody is counting, limit at the most: those
	// that an instance took and did not settle for a while, else new ones. It
	// waits a while for one to come.
	Next(ctx context.Context, limit int, wait time.Duration) ([]Delivery, error)
	// Settle takes what is counted, or refused, off the stream.
	Settle(ctx context.Context, counted []Delivery) error
	// Refuse takes a report off the stream and puts it aside.
	Refuse(ctx context.Context, bad Delivery, reason string) error
	// Waiting tells how many reports are on the stream.
	Waiting(ctx context.Context) (int64, error)
}

// Bookkeeper counts what is reported on the stream. Any number of instances may
// keep books: what one leaves behind, wherever it dies, another takes up, and the
// store knows what was counted.
type Bookkeeper struct {
	stream Stream
	books  Books
	log    *slog.Logger
	now    func() time.Time
	forgot time.Time // Run's alone

	outcomes *prometheus.CounterVec
	waiting  prometheus.Gauge
}

// NewBookkeeper returns a bookkeeper.
func NewBookkeeper(stream Stream, books Books, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Bookkeeper {
	auto := promauto.With(reg)
	return &Bookkeeper{stream: stream, books: books, log: log, now: now,
		outcomes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_usage_reports_total", Help: "Reports of speech, by outcome: counted, repeated (counted before) or refused."}, []string{"outcome"}),
		waiting: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_usage_reports_waiting", Help: "Reports of speech that are not counted yet, of all instances."}),
	}
}

// Run counts until ctx ends, and then what is there already: an embedded stream
// ends with its process.
func (b *Bookkeeper) Run(ctx context.Context) {
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
		_ = pause.For(ctx, pauses.NextBackOff())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), backlog.LastWrite)
	defer cancel()
	for taken, err := b.round(last, 0); err == nil && taken > 0; {
		taken, err = b.round(last, 0)
	}
}

func (b *Bookkeeper) round(ctx context.Context, wait time.Duration) (taken int, err error) {
	if now := b.now(); now.Sub(b.forgot) > forgetEvery {
		if err := b.books.ForgetReports(ctx, now.Add(-remembered)); err != nil {
			return 0, err
		}
		b.forgot = now
	}
	next, err := b.stream.Next(ctx, batchSize, wait)
	if err == nil {
		err = b.count(ctx, next)
	}
	if err != nil {
		return 0, err
	}
	waiting, err := b.stream.Waiting(ctx)
	b.waiting.Set(float64(waiting))
	return len(next), err
}

// claim is a delivery that says what was spoken.
type claim struct {
	Delivery
	spoken wire.SpeechReport
}

// count settles every delivery: counted, known already, or refused. It waits for
// a database that is away; should another instance take the same reports up
// meanwhile, one of the two counts them.
func (b *Bookkeeper) count(ctx context.Context, taken []Delivery) error {
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
	err := backlog.Write(ctx, good, b.enter, func(bad claim, err error) error { return b.refuse(ctx, bad.Delivery, err.Error()) })
	if err != nil {
		return err
	}
	return b.stream.Settle(ctx, taken)
}

func (b *Bookkeeper) enter(ctx context.Context, claims []claim) error {
	reports := make([]wire.SpeechReport, len(claims))
	for i, c := range claims {
		reports[i] = c.spoken
	}
	counted, err := b.books.CountTTSUsage(ctx, reports, b.now())
	if err == nil {
		b.outcomes.WithLabelValues("counted").Add(float64(counted))
		b.outcomes.WithLabelValues("repeated").Add(float64(len(claims) - counted))
	}
	return err
}

func (b *Bookkeeper) refuse(ctx context.Context, d Delivery, reason string) error {
	if err := b.stream.Refuse(ctx, d, reason); err != nil {
		return err
	}
	b.outcomes.WithLabelValues("refused").Inc()
	b.log.ErrorContext(ctx, "a report of speech was refused and put aside", "position", d.Position, "reason", reason)
	return nil
}
