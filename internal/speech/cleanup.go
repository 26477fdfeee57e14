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

// Stored is a blob as the media service lists it.
type Stored struct {
	Path       string    `json:"path"`
	Bytes      int64     `json:"bytes"`
	ModifiedAt time.Time `json:"modifiedAt"`
}

// CleanupRows is what a cleanup asks of the rows.
type CleanupRows interface {
	Speech(ctx context.Context, hash string) (Row, error)
	DropSpeech(ctx context.Context, hash string, e Encoding, checksum string) error
	// SpeechAfter lists rows whose hash comes after one, in order of hash; with
	// a moment, only those that have expired by then.
	SpeechAfter(ctx context.Context, after string, expiredBy time.Time, limit int) ([]Row, error)
	// RemoveExpired removes a row unless it has been renewed.
	RemoveExpired(ctx context.Context, r Row) error
}

// CleanupBlobs is what a cleanup asks of the media service.
type CleanupBlobs interface {
	Get(ctx context.Context, path string, ask Conditions) (Blob, error)
	// DeleteOld removes a blob unless it was stored anew since the moment, and
	// tells whether it is gone.
	DeleteOld(ctx context.Context, path string, since time.Time) (gone bool, err error)
	// List returns blobs whose paths come after one, in order of path. There
	// are no more where it returns none.
	List(ctx context.Context, after string, limit int) ([]Stored, error)
}

// Turns let one instance at a time do something, and the others something else.
type Turns interface {
	// Try returns a context that ends when the lease is released or can no
	// longer be sure to be held. Held is false where somebody else has it.
	Try(ctx context.Context, name string) (turn context.Context, release func(), held bool, err error)
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

// Janitor keeps rows and blobs together: it removes what has expired, blobs that
// nobody knows and rows that point at nothing. While the media service is away it
// removes nothing.
type Janitor struct {
	rows  CleanupRows
	blobs CleanupBlobs
	turns Turns
	log   *slog.Logger
	now   func() time.Time

	removed *prometheus.CounterVec
	failed  prometheus.Counter
	done    prometheus.Gauge
}

// NewJanitor returns a janitor.
func NewJanitor(rows CleanupRows, blobs CleanupBlobs, turns Turns, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Janitor {
	auto := promauto.With(reg)
	return &Janitor{rows: rows, blobs: blobs, turns: turns, log: log, now: now,
		removed: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_removed_total", Help: "What was removed from the media cache, by reason: expired, orphan (no row) or lost (no blob)."}, []string{"reason"}),
		failed: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_failures_total", Help: "Cleanups of the media cache that ended early."}),
		done: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_media_cleanup_last_success_timestamp_seconds", Help: "When this instance last finished a whole cleanup of the media cache."}),
	}
}

// Run cleans up until ctx ends, if no other instance has taken that upon itself.
func (j *Janitor) Run(ctx context.Context) {
	for ctx.Err() == nil {
		turn, release, held, err := j.turns.Try(ctx, janitorLease)
		if err == nil && held {
			j.serve(turn)
			release()
		}
		_ = sleep.For(ctx, expireEvery/2)
	}
}

// serve cleans up for as long as the turn lasts.
func (j *Janitor) serve(turn context.Context) {
	round := cleanup{Janitor: j, really: true, tell: func(Removal) {}}
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
func (j *Janitor) alone(ctx context.Context, work func(context.Context) error) error {
	turn, release, held, err := j.turns.Try(ctx, cleanupLease)
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
func (j *Janitor) Clean(ctx context.Context, dryRun bool, tell func(Removal)) error {
	once := cleanup{j, !dryRun, tell}
	if dryRun {
		return once.all(ctx)
	}
	return j.alone(ctx, once.all)
}

// cleanup is one of a janitor's.
type cleanup struct {
	*Janitor
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
func (c cleanup) expireRow(ctx context.Context, row Row) error {
	since := row.ExpiresAt
	if ago := c.now().Add(-orphanAge); ago.After(since) {
		since = ago
	}
	for e := range row.Variants {
		path := Path(row.Hash, e)
		gone, err := c.remove(Removal{Expired, path, 0}, func() (bool, error) { return c.blobs.DeleteOld(ctx, path, since) })
		if err != nil || !gone {
			return err
		}
	}
	if !c.really {
		return nil
	}
	return c.rows.RemoveExpired(ctx, row)
}
