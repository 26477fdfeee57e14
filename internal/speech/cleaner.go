package speech

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/fault"
)

const (
	expireInterval   = time.Minute
	completeInterval = time.Hour // between two cleanups that do more than remove expired recordings
	cleanupPage      = 500

	// cleanerLease is held all the time by the instance that cleans up periodically.
	cleanerLease = "media-cleaner"
	// cleanupLease is held during each cleanup, also by the command line.
	cleanupLease = "media-cleanup"

	// orphanAge is the minimum age of an orphaned blob. A recording is stored
	// after its blob, and clocks differ.
	orphanAge = time.Hour
)

// Removal is an item that a cleanup removes.
type Removal struct {
	Reason string `json:"reason"`
	Path   string `json:"path"`           // of the blob
	Bytes  int64  `json:"bytes,omitzero"` // of an orphan; otherwise unknown
}

// Reasons of a Removal.
const (
	Expired = "expired"
	Unused  = "unused" // for the retention
	Orphan  = "orphan" // a blob without a recording
	Lost    = "lost"   // a variant without a blob
)

// Cleaner removes expired and unused recordings, orphaned blobs and variants
// without a blob. It removes nothing while the media service is unavailable.
type Cleaner struct {
	store  Store
	blobs  BlobStore
	leases Leases
	// retention is how long a recording without an expiry is kept after its last
	// use. 0 keeps it.
	retention time.Duration
	log       *slog.Logger
	now       func() time.Time

	removed     *prometheus.CounterVec
	failures    prometheus.Counter
	lastSuccess prometheus.Gauge
}

// NewCleaner returns a cleaner. If leases is nil, only Clean may be called.
func NewCleaner(store Store, blobs BlobStore, leases Leases, retention time.Duration, log *slog.Logger, reg prometheus.Registerer, now func() time.Time) *Cleaner {
	auto := promauto.With(reg)
	return &Cleaner{store: store, blobs: blobs, leases: leases, retention: retention, log: log, now: now,
		removed: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_removed_total", Help: "Items removed from the media cache by reason: expired, unused, orphan (blob without a row) or lost (row without a blob)."}, []string{"reason"}),
		failures: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_media_cleanup_failures_total", Help: "Media cache cleanups that failed."}),
		lastSuccess: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_media_cleanup_last_success_timestamp_seconds", Help: "Unix time of the last complete media cache cleanup by this instance."}),
	}
}

// Run cleans up periodically until ctx ends. One instance at a time does so.
func (c *Cleaner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		leaseCtx, release, held, err := c.leases.Try(ctx, cleanerLease)
		if err == nil && held {
			c.cleanPeriodically(leaseCtx)
			release()
		}
		_ = background.Sleep(ctx, expireInterval/2)
	}
}

func (c *Cleaner) cleanPeriodically(ctx context.Context) {
	run := cleanup{Cleaner: c, report: func(Removal) {}}
	var lastComplete time.Time
	for ctx.Err() == nil {
		work := run.expire
		completeIsDue := c.now().Sub(lastComplete) >= completeInterval
		if completeIsDue {
			work = run.complete
		}
		err := c.exclusively(ctx, work)
		switch {
		case err == nil && completeIsDue:
			lastComplete = c.now()
			c.lastSuccess.Set(float64(lastComplete.Unix()))
		case err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable): // stores log their own outages
			c.failures.Inc()
			c.log.WarnContext(ctx, "media cache cleanup failed", "error", err)
		}
		_ = background.Sleep(ctx, expireInterval)
	}
}

// Clean runs one complete cleanup and reports each removal. A dry run reports
// without removing.
func (c *Cleaner) Clean(ctx context.Context, dryRun bool, report func(Removal)) error {
	run := cleanup{c, dryRun, report}
	if dryRun || c.leases == nil {
		return run.complete(ctx)
	}
	return c.exclusively(ctx, run.complete)
}

var errCleanupRunning = fault.New(fault.ServiceUnavailable, "Another media cache cleanup is running. Try again later.")

// exclusively runs work unless another cleanup is running on any instance.
func (c *Cleaner) exclusively(ctx context.Context, work func(context.Context) error) error {
	leaseCtx, release, held, err := c.leases.Try(ctx, cleanupLease)
	if err != nil {
		return err
	}
	if !held {
		return errCleanupRunning
	}
	defer release()
	return work(leaseCtx)
}

type cleanup struct {
	*Cleaner
	dryRun bool
	report func(Removal)
}

func (c cleanup) complete(ctx context.Context) error {
	err := c.expire(ctx)
	if err == nil && c.retention > 0 {
		err = c.removeRecordings(ctx, Unused, RecordingFilter{UnusedSince: c.now().Add(-c.retention)})
	}
	if err == nil {
		err = c.reconcile(ctx)
	}
	return err
}

// remove calls do and, if the item is gone afterwards, counts and reports it. A
// dry run only reports it, and returns true.
func (c cleanup) remove(r Removal, do func() (gone bool, err error)) (gone bool, err error) {
	if !c.dryRun {
		if gone, err = do(); err != nil || !gone {
			return false, err
		}
		c.removed.WithLabelValues(r.Reason).Inc()
	}
	c.report(r)
	return true, nil
}

func (c cleanup) expire(ctx context.Context) error {
	return c.removeRecordings(ctx, Expired, RecordingFilter{ExpiredBy: c.now()})
}

func (c cleanup) removeRecordings(ctx context.Context, reason string, filter RecordingFilter) error {
	checked := false // that this is a media service: on a wrong address every blob is "not found"
	for rec, err := range c.recordings(ctx, filter) {
		if err == nil && !checked {
			checked = true
			_, err = c.blobs.List(ctx, "", 1)
		}
		if err == nil {
			err = c.removeRecording(ctx, reason, rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeRecording removes the blobs before the recording, so that the next
// cleanup continues after an error. It keeps a blob modified after the expiry,
// because a renewal is storing it, but for at most orphanAge.
func (c cleanup) removeRecording(ctx context.Context, reason string, rec Recording) error {
	since := rec.ExpiresAt
	if since.IsZero() {
		since = rec.lastUse().Add(c.retention)
	}
	if earliest := c.now().Add(-orphanAge); since.Before(earliest) {
		since = earliest
	}
	for e := range rec.Variants {
		path := BlobPath(rec.Hash, e)
		gone, err := c.remove(Removal{Reason: reason, Path: path}, func() (bool, error) {
			return c.blobs.DeleteUnmodifiedSince(ctx, path, since)
		})
		if err != nil || !gone {
			return err
		}
	}
	if c.dryRun {
		return nil
	}
	return c.store.DeleteUnchangedRecording(ctx, rec)
}

// reconcile merges the lists of variants and blobs, which are in order of path, and removes
// items without a counterpart. It does nothing if only one of the lists is empty: an
// unmounted volume or a wrong database must not delete the whole cache.
func (c cleanup) reconcile(ctx context.Context) error {
	nextVariant, stop := iter.Pull2(c.variants(ctx))
	defer stop()
	nextBlob, stop := iter.Pull2(pages(func(after string) ([]BlobInfo, error) { return c.blobs.List(ctx, after, cleanupPage) },
		func(b BlobInfo) string { return b.Path }))
	defer stop()
	v, err, hasVariant := nextVariant()
	b, blobErr, hasBlob := nextBlob()
	if err := errors.Join(err, blobErr); err != nil {
		return err
	}
	switch {
	case hasBlob && !hasVariant:
		c.log.WarnContext(ctx, "media cache not reconciled: there are blobs but no recordings. Check the database.")
		return nil
	case hasVariant && !hasBlob:
		c.log.WarnContext(ctx, "media cache not reconciled: there are recordings but no blobs. Check the media service's volume.")
		return nil
	}
	for err == nil && (hasVariant || hasBlob) {
		isLost := hasVariant && (!hasBlob || v.path < b.Path)
		isOrphan := hasBlob && (!hasVariant || b.Path < v.path)
		if isLost {
			err = c.removeLost(ctx, v)
		} else if isOrphan {
			err = c.removeOrphan(ctx, b)
		}
		if err == nil && !isOrphan { // v is lost or has the blob b
			v, err, hasVariant = nextVariant()
		}
		if err == nil && !isLost {
			b, err, hasBlob = nextBlob()
		}
	}
	return err
}

type variant struct {
	Recording
	encoding Encoding
	path     string // of its blob
}

// variants iterates over the variants of all recordings in order of path.
func (c cleanup) variants(ctx context.Context) iter.Seq2[variant, error] {
	return func(yield func(variant, error) bool) {
		for rec, err := range c.recordings(ctx, RecordingFilter{}) {
			if err != nil {
				yield(variant{}, err)
				return
			}
			for _, e := range slices.Sorted(maps.Keys(rec.Variants)) {
				if !yield(variant{rec, e, BlobPath(rec.Hash, e)}, nil) {
					return
				}
			}
		}
	}
}

// removeLost deletes a variant without a blob. It checks again, since the blob may have
// been stored after the listing. It skips expired recordings: expire removes them.
func (c cleanup) removeLost(ctx context.Context, v variant) error {
	if v.expired(c.now()) {
		return nil
	}
	if exists, err := c.blobs.Exists(ctx, v.path); err != nil || exists {
		return err
	}
	_, err := c.remove(Removal{Reason: Lost, Path: v.path}, func() (bool, error) {
		err := c.store.DeleteVariant(ctx, v.Hash, v.encoding, v.Variants[v.encoding])
		return err == nil, err
	})
	return err
}

// removeOrphan deletes a blob of speech that is older than orphanAge and still has no
// recording.
func (c cleanup) removeOrphan(ctx context.Context, blob BlobInfo) error {
	_, name, _ := strings.Cut(blob.Path, "/")
	hash, e, ok := parseBlobName(name)
	if !ok || BlobPath(hash, e) != blob.Path || c.now().Sub(blob.ModifiedAt) < orphanAge {
		return nil
	}
	rec, err := c.store.Recording(ctx, hash)
	if rec.Variants[e] != "" || err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	_, err = c.remove(Removal{Orphan, blob.Path, blob.Bytes}, func() (bool, error) {
		return c.blobs.DeleteUnmodifiedSince(ctx, blob.Path, c.now().Add(-orphanAge))
	})
	return err
}

// recordings iterates over recordings in order of hash.
func (c cleanup) recordings(ctx context.Context, filter RecordingFilter) iter.Seq2[Recording, error] {
	return pages(func(after string) ([]Recording, error) {
		return c.store.ListRecordings(ctx, filter, after, cleanupPage)
	}, func(r Recording) string { return r.Hash })
}

// pages iterates over a list that is read in pages. An empty page is the end.
func pages[T any](read func(after string) ([]T, error), key func(T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := ""; ; {
			page, err := read(after)
			if err != nil {
				yield(*new(T), err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, item := range page {
				if !yield(item, nil) {
					return
				}
			}
			after = key(page[len(page)-1])
		}
	}
}
