package speech

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"telapi/internal/fault"
)

// reconcile merges the ordered lists of recordings and blobs, and removes items
// without a counterpart. It does nothing if only one of the lists is empty: an
// unmounted volume or a wrong database must not delete the whole cache.
func (c cleanup) reconcile(ctx context.Context) error {
	next, stop := iter.Pull2(c.recordings(ctx, time.Time{}))
	defer stop()
	rec, err, more := next()
	if err != nil {
		return err
	}
	found := map[Encoding]bool{} // blobs of rec
	finish := func() error {     // continues with the next recording
		if err := c.removeLost(ctx, rec, found); err != nil {
			return err
		}
		clear(found)
		rec, err, more = next()
		return err
	}
	started := false
	for blob, err := range c.blobList(ctx) {
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		if !started && !more {
			c.log.WarnContext(ctx, "media cache not reconciled: there are blobs but no recordings. Check the database.")
			return nil
		}
		started = true
		hash, e, ours := parseBlobPath(blob.Path)
		if !ours {
			continue
		}
		for more && rec.Hash < hash {
			if err := finish(); err != nil {
				return err
			}
		}
		if more && rec.Hash == hash && rec.Variants[e] != "" {
			found[e] = true
		} else if err := c.removeOrphan(ctx, blob, hash, e); err != nil {
			return err
		}
	}
	if !started && more {
		c.log.WarnContext(ctx, "media cache not reconciled: there are recordings but no blobs. Check the media service's volume.")
		return nil
	}
	for more {
		if err := finish(); err != nil {
			return err
		}
	}
	return nil
}

// removeLost deletes the variants without a blob. It checks again, since the blob
// may have been stored after the listing. Expired recordings are left to expire.
func (c cleanup) removeLost(ctx context.Context, rec Recording, found map[Encoding]bool) error {
	for e, sum := range rec.Variants {
		if found[e] || rec.expired(c.now()) {
			continue
		}
		path := BlobPath(rec.Hash, e)
		exists, err := c.blobs.Exists(ctx, path)
		if err != nil {
			return fmt.Errorf("check blob: %w", err)
		}
		if exists {
			continue
		}
		if _, err := c.remove(Removal{Lost, path, 0}, func() (bool, error) {
			err := c.store.DeleteSpeechVariant(ctx, rec.Hash, e, sum)
			return err == nil, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// removeOrphan deletes a blob that is older than orphanAge and still has no
// recording.
func (c cleanup) removeOrphan(ctx context.Context, blob BlobInfo, hash string, e Encoding) error {
	if c.now().Sub(blob.ModifiedAt) < orphanAge {
		return nil
	}
	rec, err := c.store.Speech(ctx, hash)
	if err != nil && !fault.Is(err, fault.NotFound) || err == nil && rec.Variants[e] != "" {
		return err
	}
	_, err = c.remove(Removal{Orphan, blob.Path, blob.Bytes}, func() (bool, error) {
		return c.blobs.DeleteUnmodifiedSince(ctx, blob.Path, c.now().Add(-orphanAge))
	})
	return err
}

// parseBlobPath parses a BlobPath. Other users of the media service may store
// blobs with different paths.
func parseBlobPath(path string) (hash string, e Encoding, ok bool) {
	shard, name, _ := strings.Cut(path, "/")
	hash, e, ok = ParseBlobName(name)
	return hash, e, ok && shard == hash[:2]
}

func (c cleanup) recordings(ctx context.Context, expiredBy time.Time) iter.Seq2[Recording, error] {
	return pages(func(after string) ([]Recording, error) { return c.store.ListSpeech(ctx, after, expiredBy, cleanupPage) },
		func(r Recording) string { return r.Hash })
}

func (c cleanup) blobList(ctx context.Context) iter.Seq2[BlobInfo, error] {
	return pages(func(after string) ([]BlobInfo, error) { return c.blobs.List(ctx, after, cleanupPage) },
		func(b BlobInfo) string { return b.Path })
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
