package speech

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"telapi/internal/fault"
)

// reconcile walks blobs and rows side by side, in the one order that both have,
// and removes what has no counterpart. Where either side is empty it does
// nothing: a volume that is not mounted, or another database, must not cost the
// whole cache.
func (c cleanup) reconcile(ctx context.Context) error {
	rows, blobs := rowsOf(ctx, c.rows, time.Time{}), blobsOf(ctx, c.blobs)
	there := map[Encoding]bool{} // blobs of the row at hand
	for begun := false; ; begun = true {
		row, err := rows.peek()
		if err != nil {
			return err
		}
		blob, err := blobs.peek()
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		if !begun && (row == nil) != (blob == nil) {
			c.log.WarnContext(ctx, "the media cache is not reconciled: there are rows and no blobs at all, or blobs and no rows",
				"rows", row != nil, "blobs", blob != nil)
			return nil
		}
		if row == nil && blob == nil {
			return nil
		}
		var hash string
		var e Encoding
		if blob != nil {
			var ours bool
			if hash, e, ours = parsePath(blob.Path); !ours {
				blobs.next()
				continue
			}
		}
		if blob == nil || row != nil && row.Hash < hash { // all blobs of the row have been seen
			rows.next()
			err = c.match(ctx, *row, there)
			clear(there)
		} else {
			blobs.next()
			if row != nil && row.Hash == hash && row.Variants[e] != "" {
				there[e] = true
			} else {
				err = c.orphan(ctx, *blob, hash, e)
			}
		}
		if err != nil {
			return err
		}
	}
}

// match drops the variants of a row that have no blob. A row whose time is over
// is about to go as a whole.
func (c cleanup) match(ctx context.Context, row Recording, there map[Encoding]bool) error {
	for e := range row.Variants {
		if there[e] || row.expired(c.now()) {
			continue
		}
		if err := c.lost(ctx, row, e); err != nil {
			return err
		}
	}
	return nil
}

// lost drops a variant whose blob is gone, also on a second look: it may have
// been stored since the list was made.
func (c cleanup) lost(ctx context.Context, row Recording, e Encoding) error {
	path := BlobPath(row.Hash, e)
	blob, err := c.blobs.Get(ctx, path, Conditions{Head: true})
	if err == nil {
		return blob.Body.Close()
	}
	if !errors.Is(err, ErrBlobNotFound) {
		return fmt.Errorf("look for a blob: %w", err)
	}
	_, err = c.remove(Removal{Lost, path, 0}, func() (bool, error) {
		err := c.rows.DeleteSpeechVariant(ctx, row.Hash, e, row.Variants[e])
		return err == nil, err
	})
	return err
}

// orphan deletes a blob that has been there for a while and still has no row.
func (c cleanup) orphan(ctx context.Context, blob BlobInfo, hash string, e Encoding) error {
	if c.now().Sub(blob.ModifiedAt) < orphanAge {
		return nil
	}
	row, err := c.rows.Speech(ctx, hash)
	if err != nil && !fault.Is(err, fault.NotFound) || err == nil && row.Variants[e] != "" {
		return err
	}
	_, err = c.remove(Removal{Orphan, blob.Path, blob.Bytes}, func() (bool, error) {
		return c.blobs.DeleteUnmodifiedSince(ctx, blob.Path, c.now().Add(-orphanAge))
	})
	return err
}

// parsePath reads the path of a blob of ours. Others may use the media service
// too; what they store is none of a janitor's business.
func parsePath(path string) (hash string, e Encoding, ok bool) {
	shard, name, _ := strings.Cut(path, "/")
	hash, e, ok = ParseBlobName(name)
	return hash, e, ok && shard == hash[:2]
}

// walk goes through a long list in its order, a page at a time.
type walk[T any] struct {
	read func(after string) ([]T, error) // empty after the last
	name func(T) string
	page []T
	last string
	end  bool
}

func rowsOf(ctx context.Context, rows Store, expiredBy time.Time) *walk[Recording] {
	return &walk[Recording]{
		read: func(after string) ([]Recording, error) { return rows.ListSpeech(ctx, after, expiredBy, cleanupPage) },
		name: func(r Recording) string { return r.Hash },
	}
}

func blobsOf(ctx context.Context, blobs BlobStore) *walk[BlobInfo] {
	return &walk[BlobInfo]{
		read: func(after string) ([]BlobInfo, error) { return blobs.List(ctx, after, cleanupPage) },
		name: func(b BlobInfo) string { return b.Path },
	}
}

// peek returns the next one, nil after the last.
func (w *walk[T]) peek() (*T, error) {
	if len(w.page) == 0 && !w.end {
		page, err := w.read(w.last)
		if err != nil {
			return nil, err
		}
		w.page, w.end = page, len(page) == 0
	}
	if len(w.page) == 0 {
		return nil, nil //nolint:nilnil // there are no more
	}
	return &w.page[0], nil
}

func (w *walk[T]) next() { w.last, w.page = w.name(w.page[0]), w.page[1:] }
