package speech

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/fault"
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
	DropSpeech(ctx context.Context, hash string, v Variant) error
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
		pause(ctx, expireEvery/2)
	}
}

// serve cleans up for as long as the turn lasts.
func (j *Janitor) serve(turn context.Context) {
	var reconciled time.Time
	for turn.Err() == nil {
		due := j.now().Sub(reconciled) >= reconcileEvery
		err := j.alone(turn, func(ctx context.Context) error {
			if !due {
				return j.expire(ctx, true, ignored)
			}
			return j.all(ctx, true, ignored)
		})
		switch {
		case err == nil && due:
			reconciled = j.now()
			j.done.Set(float64(reconciled.Unix()))
		case err != nil && turn.Err() == nil && !fault.Is(err, fault.ServiceUnavailable): // another is at it, or a store says itself that it is away
			j.failed.Inc()
			j.log.WarnContext(turn, "the media cache was not cleaned up", "error", err)
		}
		pause(turn, expireEvery)
	}
}

func ignored(Removal) {}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
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

// Clean does everything once.
func (j *Janitor) Clean(ctx context.Context, tell func(Removal)) error {
	return j.alone(ctx, func(ctx context.Context) error { return j.all(ctx, true, tell) })
}

// Preview tells what Clean would remove, and removes nothing.
func (j *Janitor) Preview(ctx context.Context, tell func(Removal)) error {
	return j.all(ctx, false, tell)
}

func (j *Janitor) all(ctx context.Context, really bool, tell func(Removal)) error {
	if err := j.expire(ctx, really, tell); err != nil {
		return err
	}
	return j.reconcile(ctx, really, tell)
}

// expire removes what is over its time: the blobs, then the row, so that what
// fails in between is found again.
func (j *Janitor) expire(ctx context.Context, really bool, tell func(Removal)) error {
	for after := ""; ; {
		rows, err := j.rows.SpeechAfter(ctx, after, j.now(), cleanupPage)
		if err != nil || len(rows) == 0 {
			return err
		}
		after = rows[len(rows)-1].Hash
		if _, err := j.blobs.List(ctx, "", 1); err != nil {
			return fmt.Errorf("ask for blobs: %w", err) // whoever has no list has no word on what is not there
		}
		for _, row := range rows {
			if err := j.expireRow(ctx, row, really, tell); err != nil {
				return err
			}
		}
	}
}

// expireRow leaves a row alone that somebody is renewing: its blob is then younger
// than the end of its time. Where clocks differ an old one goes in the end.
func (j *Janitor) expireRow(ctx context.Context, row Row, really bool, tell func(Removal)) error {
	since := row.ExpiresAt
	if ago := j.now().Add(-orphanAge); ago.After(since) {
		since = ago
	}
	for _, v := range row.Variants {
		path := Path(row.Hash, v.Encoding)
		if really {
			if gone, err := j.blobs.DeleteOld(ctx, path, since); err != nil || !gone {
				return err
			}
		}
		j.note(Removal{Expired, path, 0}, really, tell)
	}
	if !really {
		return nil
	}
	return j.rows.RemoveExpired(ctx, row)
}

func (j *Janitor) note(r Removal, really bool, tell func(Removal)) {
	if really {
		j.removed.WithLabelValues(r.Reason).Inc()
	}
	tell(r)
}

func ignore(err error, code fault.Code) error {
	if fault.Is(err, code) {
		return nil
	}
	return err
}

// parsePath reads the path of a blob of ours. Others may use the media service
// too; what they store is none of a janitor's business.
func parsePath(path string) (hash string, e Encoding, ok bool) {
	shard, name, _ := strings.Cut(path, "/")
	hash, e, ok = ParseName(name)
	return hash, e, ok && shard == hash[:2]
}
