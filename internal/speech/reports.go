package speech

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/fault"
)

const (
	batchSize       = 500
	readWait        = time.Second
	pruneInterval   = time.Hour
	measureInterval = 5 * time.Second
)

// ReportConsumer counts the reports on the stream. All instances run one. If an
// instance dies, another one reads its entries, and the store ignores reports
// that were already counted.
type ReportConsumer struct {
	stream ReportStream
	store  ReportStore
	log    *slog.Logger
	now    func() time.Time
	pruned time.Time // when old report IDs were last deleted; used by Run only

	outcomes *prometheus.CounterVec
	waiting  prometheus.Gauge // reports on the stream
}

// NewReportConsumer returns a consumer.
func NewReportConsumer(stream ReportStream, store ReportStore, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *ReportConsumer {
	auto := promauto.With(reg)
	c := &ReportConsumer{stream: stream, store: store, log: log, now: now,
		outcomes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_usage_reports_total", Help: "Usage reports, by outcome: counted, repeated (already counted) or rejected."}, []string{"outcome"}),
		waiting: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_usage_reports_waiting", Help: "Usage reports of all instances that are not counted yet."}),
	}
	c.outcomes.WithLabelValues("rejected") // starts at 0, so that an alert sees the first increase
	return c
}

// Run counts reports until ctx ends, and then the reports that are still on the
// stream: no other instance counts those of the embedded store. It also deletes old
// report IDs.
func (c *ReportConsumer) Run(ctx context.Context) {
	var measuring sync.WaitGroup
	defer measuring.Wait()
	measuring.Go(func() { c.measure(ctx) })
	delays := background.StoreBackoff()
	for ctx.Err() == nil {
		err := c.prune(ctx)
		if err == nil {
			_, err = c.countBatch(ctx, readWait)
		}
		if err == nil {
			delays.Reset()
			continue
		}
		if ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) { // stores log outages themselves
			c.log.ErrorContext(ctx, "counting usage reports failed", "error", err)
		}
		_ = background.Sleep(ctx, delays.Next())
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), background.ShutdownTimeout)
	defer cancel()
	for n, err := c.countBatch(shutdown, 0); err == nil && n > 0; {
		n, err = c.countBatch(shutdown, 0)
	}
}

// prune deletes report IDs once per pruneInterval.
func (c *ReportConsumer) prune(ctx context.Context) error {
	now := c.now()
	if now.Sub(c.pruned) <= pruneInterval {
		return nil
	}
	err := c.store.DeleteReports(ctx, now.Add(-idRetention))
	if err == nil {
		c.pruned = now
	}
	return err
}

// countBatch counts the next entries and returns their number.
func (c *ReportConsumer) countBatch(ctx context.Context, wait time.Duration) (int, error) {
	entries, err := c.stream.Read(ctx, batchSize, wait)
	if err == nil {
		err = c.count(ctx, entries)
	}
	return len(entries), err
}

// measure updates the number of waiting reports until ctx ends, also while the
// database is unreachable and countBatch waits for it.
func (c *ReportConsumer) measure(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := c.stream.Len(ctx); err == nil {
			c.waiting.Set(float64(n))
		}
		_ = background.Sleep(ctx, measureInterval)
	}
}

type parsedEntry struct {
	ReportEntry
	report wire.SpeechReport
}

// count counts or rejects every entry. It waits while the database is unreachable.
// If another instance reads the same entries in that time, each is still counted
// once.
func (c *ReportConsumer) count(ctx context.Context, entries []ReportEntry) error {
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
	err := background.Write(ctx, valid, c.add, func(e parsedEntry, err error) error { return c.reject(ctx, e.ReportEntry, err) })
	if err != nil {
		return err
	}
	return c.stream.Ack(ctx, entries)
}

func (c *ReportConsumer) add(ctx context.Context, entries []parsedEntry) error {
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

func (c *ReportConsumer) reject(ctx context.Context, e ReportEntry, reason error) error {
	if err := c.stream.Reject(ctx, e, reason.Error()); err != nil {
		return err
	}
	c.outcomes.WithLabelValues("rejected").Inc()
	c.log.ErrorContext(ctx, "usage report rejected", "position", e.ID, "reason", reason.Error())
	return nil
}

// A report is rejected after maxAge, and its ID is stored for longer. So a report
// that is sent again is either recognized by its ID or too old.
const (
	maxAge      = 7 * 24 * time.Hour
	idRetention = maxAge + 2*24*time.Hour
	maxAhead    = time.Hour // a runtime's clock may be ahead by this much
)

const (
	maxCharacters = 10_000_000
	maxReportName = 256 // length of a team, endpoint, provider, voice or model in code points
)

// parseReport parses and validates a report from the stream.
func parseReport(raw []byte, now time.Time) (r wire.SpeechReport, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("invalid report: %w", err)
	}
	var issues fault.Issues
	if r.TeamID == "" {
		issues.Missing("/teamId", "teamId is required.")
	}
	CheckReport(&r, "", now, &issues)
	r.ID = strings.ToLower(r.ID)
	return r, issues.Err()
}

// CheckReport adds the values with which a report cannot be counted to issues. Path is
// that of the report.
func CheckReport(r *wire.SpeechReport, path string, now time.Time, issues *fault.Issues) {
	issues.Check(len(r.ID) == len(uuid.Nil.String()) && uuid.Validate(r.ID) == nil, path+"/id", fault.IssueValue, "Must be a UUID.")
	fault.CheckRange(issues, path+"/characters", r.Characters, 1, maxCharacters)
	at := time.UnixMilli(r.At)
	issues.Check(now.Sub(at) <= maxAge, path+"/at", fault.IssueTooSmall, "Must be at most %d days ago.", maxAge/(24*time.Hour))
	issues.Check(at.Sub(now) <= maxAhead, path+"/at", fault.IssueTooLarge, "Must not be in the future.")
	for name, value := range map[string]string{"teamId": r.TeamID, "endpointId": r.EndpointID, "provider": r.Provider, "voice": r.Voice, "model": r.Model} {
		issues.Check(utf8.RuneCountInString(value) <= maxReportName, path+"/"+name, fault.IssueTooLong, "Must have at most %d characters.", maxReportName)
		issues.Check(!strings.ContainsRune(value, 0), path+"/"+name, fault.IssueForbidden, "Must not contain NUL.")
	}
}

// maxQueued is the maximum number of reports in memory while the stream is
// unreachable.
const maxQueued = 10_000

// Reporter appends the usage reports of this instance to the stream.
type Reporter struct {
	stream ReportStream
	queue  *background.Queue[[]byte]
	log    *slog.Logger
	lost   prometheus.Counter
}

// NewReporter returns a reporter. Run must be running, to send the reports that
// Report could not append.
func NewReporter(stream ReportStream, log *slog.Logger, reg prometheus.Registerer) *Reporter {
	return &Reporter{stream: stream, log: log,
		lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "telapi_usage_reports_lost_total", Help: "Usage reports of this instance lost because the key-value store was unreachable."}),
		queue: background.NewQueue(maxQueued, func([]byte) int { return 1 }, batchSize, func(ctx context.Context, reports [][]byte) error {
			if err := stream.Append(ctx, reports...); err != nil {
				return fault.Unavailable("The key-value store", err) // so that every error is retried
			}
			return nil
		}, nil)}
}

// Report appends a report to the stream, where it survives the end of this
// process. If the stream is unreachable, Report queues the report, and Run sends it
// later with the same ID. So it counts once even if only the reply was lost.
func (r *Reporter) Report(ctx context.Context, report wire.SpeechReport) {
	report.ID = uuid.NewString()
	raw, err := json.Marshal(report)
	if err != nil || r.stream.Append(context.WithoutCancel(ctx), raw) != nil && !r.queue.Add(raw) {
		r.lost.Inc()
	}
}

// Run sends queued reports until ctx ends, and then the remaining ones for at most
// background.ShutdownTimeout.
func (r *Reporter) Run(ctx context.Context) {
	if lost := r.queue.Run(ctx); lost > 0 {
		r.lost.Add(float64(lost))
		r.log.ErrorContext(ctx, "usage reports lost at shutdown", "requests", lost)
	}
}
