package usage

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
)

const (
	batchSize   = 500
	nextWait    = time.Second
	forgetEvery = time.Hour
	firstPause  = 100 * time.Millisecond
	maxPause    = 5 * time.Second
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
	// Settle takes what is counted off the stream.
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
	b := &Bookkeeper{stream: stream, books: books, log: log, now: now,
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_usage_reports_total", Help: "Reports of speech, by outcome: counted, repeated (counted before) or refused."}, []string{"outcome"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_usage_reports_waiting", Help: "Reports of speech that are not counted yet, of all instances."}),
	}
	reg.MustRegister(b.outcomes, b.waiting)
	return b
}

// Run counts until ctx ends, and then what is there already: an embedded stream
// ends with its process.
func (b *Bookkeeper) Run(ctx context.Context) {
	pauses := newPauses()
	for ctx.Err() == nil {
		_, err := b.round(ctx, nextWait)
		if err == nil {
			pauses.Reset()
			continue
		}
		if ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) { // stores say themselves that they are away
			b.log.ErrorContext(ctx, "reports of speech were not counted", "error", err)
		}
		select {
		case <-time.After(pauses.NextBackOff()):
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	for taken, err := b.round(last, 0); err == nil && taken > 0; {
		taken, err = b.round(last, 0)
	}
}

func newPauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, maxPause
	return pauses
}

func (b *Bookkeeper) round(ctx context.Context, wait time.Duration) (taken int, err error) {
	if now := b.now(); now.Sub(b.forgot) > forgetEvery {
		if err := b.books.ForgetReceipts(ctx, now.Add(-remembered)); err != nil {
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

// count settles every delivery: counted, known already, or refused.
func (b *Bookkeeper) count(ctx context.Context, taken []Delivery) error {
	var good []Delivery
	var receipts []Receipt
	for _, d := range taken {
		r, err := readReceipt(d.Report, b.now())
		if err != nil {
			if err := b.refuse(ctx, d, err.Error()); err != nil {
				return err
			}
			continue
		}
		good, receipts = append(good, d), append(receipts, r)
	}
	if len(good) == 0 {
		return nil
	}
	counted, err := b.enter(ctx, receipts)
	switch {
	case err == nil:
		b.outcomes.WithLabelValues("counted").Add(float64(counted))
		b.outcomes.WithLabelValues("repeated").Add(float64(len(good) - counted))
		return b.stream.Settle(ctx, good)
	case ctx.Err() != nil:
		return ctx.Err()
	case len(good) == 1:
		return b.refuse(ctx, good[0], err.Error())
	}
	for i := range good { // so that one that the database refuses holds up no other
		if err := b.count(ctx, good[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// enter waits for a database that is away. Should another instance take the same
// reports up meanwhile, one of the two counts them.
func (b *Bookkeeper) enter(ctx context.Context, receipts []Receipt) (int, error) {
	return backoff.Retry(ctx, func() (int, error) {
		counted, err := b.books.CountTTSUsage(ctx, receipts, b.now())
		if err != nil && !fault.Is(err, fault.ServiceUnavailable) {
			err = backoff.Permanent(err)
		}
		return counted, err
	}, backoff.WithBackOff(newPauses()), backoff.WithMaxElapsedTime(0))
}

func (b *Bookkeeper) refuse(ctx context.Context, d Delivery, reason string) error {
	if err := b.stream.Refuse(ctx, d, reason); err != nil {
		return err
	}
	b.outcomes.WithLabelValues("refused").Inc()
	b.log.ErrorContext(ctx, "a report of speech was refused and put aside", "position", d.Position, "reason", reason)
	return nil
}
