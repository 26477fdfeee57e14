package speech

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/fault"
	"telapi/internal/sleep"
)

const (
	expireEvery    = time.Minute
	reconcileEvery = time.Hour
	cleanupPage    = 500

	janitorLease = "media-janitor" // of the instance that cleans up every now and then
	cleanupLease = "media-cleanup" // of whoever is at it

	// orphanAge is how old a blob without a row must be to be taken for left
	// behind: a row is written a moment after its blob, and clocks differ.
	orphanAge = time.Hour
)

// BlobInfo is a blob as the media service lists it.
type BlobInfo struct {
	Path       string    `json:"path"`
	Bytes      int64     `json:"bytes"`
	ModifiedAt time.Time `json:"modifiedAt"`
}

// Removal is something that a cleanup removed, or would have.
type Removal struct {
	Reason string `json:"reason"`
	Path   string `json:"path"` // of the blob
	Bytes  int64  `json:"bytes,omitzero"`
}

// Why something is removed.
const (
	Expired = "expired"
	Orphan  = "orphan" // a blob that no row knows
	Lost    = "lost"   // a row whose blob is gone
)

// Cleaner keeps rows and blobs together: it removes what has expired, blobs that
// nobody knows and rows that point at nothing. While the media service is away it
// removes nothing.
type Cleaner struct {
	rows   Store
	blobs  BlobStore
	leases Leases
	log    *slog.Logger
	now    func() time.Time

	removed *prometheus.CounterVec
	failed  prometheus.Counter
	done    prometheus.Gauge
}

// NewCleaner returns a janitor.
func NewCleaner(rows Store, blobs BlobStore, leases Leases, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Cleaner {
	auto := promauto.With(reg)
	return &Cleaner{rows: rows, blobs: blobs, leases: leases, log: log, now: now,
		removed: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_removed_total", Help: "What was removed from the media cache, by reason: expired, orphan (no row) or lost (no blob)."}, []string{"reason"}),
		failed: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_failures_total", Help: "Cleanups of the media cache that ended early."}),
		done: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_media_cleanup_last_success_timestamp_seconds", Help: "When this instance last finished a whole cleanup of the media cache."}),
	}
}

// Run cleans up until ctx ends, if no other instance has taken that upon itself.
func (j *Cleaner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		turn, release, held, err := j.leases.Try(ctx, janitorLease)
		if err == nil && held {
			j.serve(turn)
			release()
		}
		_ = sleep.For(ctx, expireEvery/2)
	}
}

// serve cleans up for as long as the turn lasts.
func (j *Cleaner) serve(turn context.Context) {
	round := cleanup{Cleaner: j, really: true, tell: func(Removal) {}}
	var reconciled time.Time
	for turn.Err() == nil {
		due := j.now().Sub(reconciled) >= reconcileEvery
		work := round.expire
		if due {
			work = round.all
		}
		err := j.alone(turn, work)
		switch {
		case err == nil && due:
			reconciled = j.now()
			j.done.Set(float64(reconciled.Unix()))
		case err != nil && turn.Err() == nil && !fault.Is(err, fault.ServiceUnavailable): // another is at it, or a store says itself that it is away
			j.failed.Inc()
			j.log.WarnContext(turn, "the media cache was not cleaned up", "error", err)
		}
		_ = sleep.For(turn, expireEvery)
	}
}

var errBusy = fault.New(fault.ServiceUnavailable, "Another cleanup of the media cache is under way. Try again in a moment.")

// alone works while no other cleanup does, the janitor's or an operator's.
func (j *Cleaner) alone(ctx context.Context, work func(context.Context) error) error {
	if j.leases == nil {
		return work(ctx)
	}
	turn, release, held, err := j.leases.Try(ctx, cleanupLease)
	if err != nil {
		return err
	}
	if !held {
		return errBusy
	}
	defer release()
	return work(turn)
}

// Clean does everything once, or only tells what it would remove.
func (j *Cleaner) Clean(ctx context.Context, dryRun bool, tell func(Removal)) error {
	once := cleanup{j, !dryRun, tell}
	if dryRun {
		return once.all(ctx)
	}
	return j.alone(ctx, once.all)
}

// cleanup is one of a janitor's.
type cleanup struct {
	*Cleaner
	really bool
	tell   func(Removal)
}

func (c cleanup) all(ctx context.Context) error {
	if err := c.expire(ctx); err != nil {
		return err
	}
	return c.reconcile(ctx)
}

// remove does what removes something, which tells whether it is gone then.
func (c cleanup) remove(r Removal, do func() (gone bool, err error)) (bool, error) {
	if c.really {
		if gone, err := do(); err != nil || !gone {
			return false, err
		}
		c.removed.WithLabelValues(r.Reason).Inc()
	}
	c.tell(r)
	return true, nil
}

// expire removes what is over its time: the blobs, then the row, so that what
// fails in between is found again.
func (c cleanup) expire(ctx context.Context) error {
	rows := rowsOf(ctx, c.rows, c.now())
	if first, err := rows.peek(); err != nil || first == nil {
		return err
	}
	if _, err := c.blobs.List(ctx, "", 1); err != nil {
		return fmt.Errorf("ask for blobs: %w", err) // whoever has no list has no word on what is not there
	}
	for {
		row, err := rows.peek()
		if err != nil || row == nil {
			return err
		}
		rows.next()
		if err := c.expireRow(ctx, *row); err != nil {
			return err
		}
	}
}

// expireRow leaves a row alone that somebody is renewing: its blob is then younger
// than the end of its time. Where clocks differ an old one goes in the end.
func (c cleanup) expireRow(ctx context.Context, row Recording) error {
	since := row.ExpiresAt
	if ago := c.now().Add(-orphanAge); ago.After(since) {
		since = ago
	}
	for e := range row.Variants {
		path := BlobPath(row.Hash, e)
		gone, err := c.remove(Removal{Expired, path, 0}, func() (bool, error) { return c.blobs.DeleteUnmodifiedSince(ctx, path, since) })
		if err != nil || !gone {
			return err
		}
	}
	if !c.really {
		return nil
	}
	return c.rows.DeleteExpiredSpeech(ctx, row)
}
