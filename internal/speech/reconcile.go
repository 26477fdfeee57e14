package speech

import (
	"context"
	"errors"
	"fmt"
	"time"

	"telapi/internal/fault"
)

// reconcile walks blobs and rows side by side, in the one order that both have,
// and removes what has no counterpart. Where either side is empty it does
// nothing: a volume that is not mounted, or another database, must not cost the
// whole cache.
func (j *Janitor) reconcile(ctx context.Context, really bool, tell func(Removal)) error {
	rows := &rowWalk{rows: j.rows}
	blobs := map[string]Stored{} // not matched by a row yet
	first, err := rows.peek(ctx)
	if err != nil {
		return err
	}
	for after, begun := "", false; ; begun = true {
		page, err := j.blobs.List(ctx, after, cleanupPage)
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		if !begun && (first == nil) != (len(page) == 0) {
			j.log.WarnContext(ctx, "the media cache is not reconciled: there are rows and no blobs at all, or blobs and no rows",
				"rows", first != nil, "blobs", len(page) > 0)
			return nil
		}
		for _, blob := range page {
			after = blob.Path
			if _, _, ours := parsePath(blob.Path); ours {
				blobs[blob.Path] = blob
			}
		}
		end := len(page) == 0
		covered := func(hash string) bool { return end || Path(hash, PCM) <= after } // all its blobs were listed
		if err := j.match(ctx, rows, blobs, covered, really, tell); err != nil {
			return err
		}
		for path, blob := range blobs {
			if hash, _, _ := parsePath(path); covered(hash) {
				delete(blobs, path)
				if err := j.orphan(ctx, blob, really, tell); err != nil {
					return err
				}
			}
		}
		if end {
			return nil
		}
	}
}

// match takes rows as far as their blobs were listed, and from the blobs those
// that a row has.
func (j *Janitor) match(ctx context.Context, rows *rowWalk, blobs map[string]Stored, covered func(hash string) bool, really bool, tell func(Removal)) error {
	for {
		row, err := rows.peek(ctx)
		if err != nil || row == nil || !covered(row.Hash) {
			return err
		}
		rows.next()
		for _, v := range row.Variants {
			path := Path(row.Hash, v.Encoding)
			if _, there := blobs[path]; there {
				delete(blobs, path)
			} else if row.expired(j.now()) {
				continue // about to go as a whole
			} else if err := j.lost(ctx, *row, v, really, tell); err != nil {
				return err
			}
		}
	}
}

// lost drops a variant whose blob is gone, also on a second look: it may have
// been stored since the list was made.
func (j *Janitor) lost(ctx context.Context, row Row, v Variant, really bool, tell func(Removal)) error {
	path := Path(row.Hash, v.Encoding)
	blob, err := j.blobs.Get(ctx, path, Conditions{Head: true})
	if err == nil {
		return blob.Body.Close()
	}
	if !errors.Is(err, ErrNoBlob) {
		return fmt.Errorf("look for a blob: %w", err)
	}
	if really {
		if err := j.rows.DropSpeech(ctx, row.Hash, v); err != nil {
			return err
		}
	}
	j.note(Removal{Lost, path, 0}, really, tell)
	return nil
}

// orphan deletes a blob that has been there for a while and still has no row.
func (j *Janitor) orphan(ctx context.Context, blob Stored, really bool, tell func(Removal)) error {
	if j.now().Sub(blob.ModifiedAt) < orphanAge {
		return nil
	}
	hash, e, _ := parsePath(blob.Path)
	row, err := j.rows.Speech(ctx, hash)
	if _, known := row.Variant(e); err == nil && known {
		return nil
	}
	if err := ignore(err, fault.NotFound); err != nil {
		return err
	}
	if really {
		if gone, err := j.blobs.DeleteOld(ctx, blob.Path, blob.ModifiedAt); err != nil || !gone {
			return err
		}
	}
	j.note(Removal{Orphan, blob.Path, blob.Bytes}, really, tell)
	return nil
}

// rowWalk goes through all rows by hash, a page at a time.
type rowWalk struct {
	rows  CleanupRows
	page  []Row
	after string
	end   bool
}

// peek returns the next row, nil after the last.
func (w *rowWalk) peek(ctx context.Context) (*Row, error) {
	if len(w.page) == 0 && !w.end {
		page, err := w.rows.SpeechAfter(ctx, w.after, time.Time{}, cleanupPage)
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

func (w *rowWalk) next() { w.after, w.page = w.page[0].Hash, w.page[1:] }
