package usage

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/sleep"
	"telapi/internal/writebehind"
)

const (
	batchSize     = 500
	readWait      = time.Second
	pruneInterval = time.Hour
)

// Consumer counts the reports on the stream. All instances run one. If an
// instance dies, another one reads its entries, and the store ignores reports
// that were already counted.
type Consumer struct {
	stream Stream
	store  ReportStore
	log    *slog.Logger
	now    func() time.Time
	pruned time.Time // used by Run only

	outcomes *prometheus.CounterVec
	waiting  prometheus.Gauge
}

// NewConsumer returns a consumer.
func NewConsumer(stream Stream, store ReportStore, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Consumer {
	auto := promauto.With(reg)
	return &Consumer{stream: stream, store: store, log: log, now: now,
		outcomes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_usage_reports_total", Help: "Usage reports, by outcome: counted, repeated (already counted) or refused."}, []string{"outcome"}),
		waiting: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_usage_reports_waiting", Help: "Usage reports of all instances that are not counted yet."}),
	}
}

// Run counts reports until ctx ends. Then it counts those already on the stream,
// because an embedded stream does not survive the process.
func (c *Consumer) Run(ctx context.Context) {
	pauses := writebehind.Backoff()
	for ctx.Err() == nil {
		_, err := c.countBatch(ctx, readWait)
		if err == nil {
			pauses.Reset()
			continue
		}
		if ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) { // stores log outages themselves
			c.log.ErrorContext(ctx, "counting usage reports failed", "error", err)
		}
		_ = sleep.For(ctx, pauses.NextBackOff())
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), writebehind.ShutdownTimeout)
	defer cancel()
	for n, err := c.countBatch(last, 0); err == nil && n > 0; {
		n, err = c.countBatch(last, 0)
	}
}

// countBatch counts the next entries and returns their number.
func (c *Consumer) countBatch(ctx context.Context, wait time.Duration) (n int, err error) {
	if now := c.now(); now.Sub(c.pruned) > pruneInterval {
		if err := c.store.DeleteReports(ctx, now.Add(-idRetention)); err != nil {
			return 0, err
		}
		c.pruned = now
	}
	entries, err := c.stream.Read(ctx, batchSize, wait)
	if err == nil {
		err = c.count(ctx, entries)
	}
	if err != nil {
		return 0, err
	}
	waiting, err := c.stream.Len(ctx)
	c.waiting.Set(float64(waiting))
	return len(entries), err
}

// parsedEntry is an entry with its parsed report.
type parsedEntry struct {
	ReportEntry
	report wire.SpeechReport
}

// count counts or rejects every entry. It waits for an unreachable database. If
// another instance reads the same entries meanwhile, only one of the two counts
// them.
func (c *Consumer) count(ctx context.Context, entries []ReportEntry) error {
	var valid []parsedEntry
	for _, e := range entries {
		report, err := parseReport(e.Report, c.now())
		if err == nil {
			valid = append(valid, parsedEntry{e, report})
		} else if err := c.reject(ctx, e, err); err != nil {
			return err
		}
	}
	if len(valid) == 0 {
		return nil
	}
	err := writebehind.Write(ctx, valid, c.add, func(e parsedEntry, err error) error { return c.reject(ctx, e.ReportEntry, err) })
	if err != nil {
		return err
	}
	return c.stream.Ack(ctx, entries)
}

func (c *Consumer) add(ctx context.Context, entries []parsedEntry) error {
	reports := make([]wire.SpeechReport, len(entries))
	for i, e := range entries {
		reports[i] = e.report
	}
	added, err := c.store.AddReports(ctx, reports, c.now())
	if err == nil {
		c.outcomes.WithLabelValues("counted").Add(float64(added))
		c.outcomes.WithLabelValues("repeated").Add(float64(len(entries) - added))
	}
	return err
}

func (c *Consumer) reject(ctx context.Context, e ReportEntry, reason error) error {
	if err := c.stream.Reject(ctx, e, reason.Error()); err != nil {
		return err
	}
	c.outcomes.WithLabelValues("refused").Inc()
	c.log.ErrorContext(ctx, "usage report rejected", "position", e.ID, "reason", reason.Error())
	return nil
}
