// Package speechtest has in-memory implementations of the interfaces of package
// speech, and the conformance suites that they share with the real ones.
package speechtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"telapi/internal/speech"
	"telapi/test/testkit"
)

// Blobs is a speech.BlobStore in memory.
type Blobs struct {
	now func() time.Time

	mu      sync.Mutex
	blobs   map[string]blob
	version int
}

type blob struct {
	content  []byte
	version  string
	modified time.Time
}

var _ speech.BlobStore = (*Blobs)(nil)

// NewBlobs returns an empty store.
func NewBlobs(now func() time.Time) *Blobs { return &Blobs{now: now, blobs: map[string]blob{}} }

// Set stores a blob with a modification time.
func (b *Blobs) Set(path string, content []byte, modified time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	b.blobs[path] = blob{bytes.Clone(content), strconv.Itoa(b.version), modified}
}

// Delete removes blobs.
func (b *Blobs) Delete(paths ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, path := range paths {
		delete(b.blobs, path)
	}
}

// Paths returns the paths of all blobs in order.
func (b *Blobs) Paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.blobs))
}

// Get implements speech.BlobStore.
func (b *Blobs) Get(ctx context.Context, path string) (content []byte, version string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found, ok := b.blobs[path]
	if !ok {
		err = speech.ErrBlobNotFound
	}
	return found.content, found.version, errors.Join(ctx.Err(), err)
}

// Exists implements speech.BlobStore.
func (b *Blobs) Exists(ctx context.Context, path string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.blobs[path]
	return ok, ctx.Err()
}

// Put implements speech.BlobStore.
func (b *Blobs) Put(ctx context.Context, path string, content []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.Set(path, content, b.now())
	return nil
}

// DeleteVersion implements speech.BlobStore.
func (b *Blobs) DeleteVersion(ctx context.Context, path, version string) (gone bool, err error) {
	return b.deleteIf(ctx, path, func(found blob) bool { return found.version == version })
}

// DeleteUnmodifiedSince implements speech.BlobStore.
func (b *Blobs) DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (gone bool, err error) {
	return b.deleteIf(ctx, path, func(found blob) bool { return !found.modified.After(since) })
}

func (b *Blobs) deleteIf(ctx context.Context, path string, condition func(blob) bool) (gone bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if found, ok := b.blobs[path]; ctx.Err() != nil || ok && !condition(found) {
		return false, ctx.Err()
	}
	delete(b.blobs, path)
	return true, nil
}

// List implements speech.BlobStore.
func (b *Blobs) List(ctx context.Context, after string, limit int) (page []speech.BlobInfo, err error) {
	for _, path := range b.Paths() {
		if path > after && len(page) < limit {
			b.mu.Lock()
			page = append(page, speech.BlobInfo{Path: path, Bytes: int64(len(b.blobs[path].content)), ModifiedAt: b.blobs[path].modified.UTC()})
			b.mu.Unlock()
		}
	}
	return page, ctx.Err()
}

// TestBlobStore checks an empty store against the contract of speech.BlobStore.
func TestBlobStore(t *testing.T, store speech.BlobStore) {
	ctx := t.Context()
	put := func(path, content string) (version string) {
		t.Helper()
		testkit.Must(t, store.Put(ctx, path, []byte(content)))
		got, version, err := store.Get(ctx, path)
		if err != nil || string(got) != content || version == "" {
			t.Errorf("Get(%s) = %q, %q, %v, want %q", path, got, version, err, content)
		}
		return version
	}
	expectGone := func(what string, want bool) func(bool, error) {
		return func(gone bool, err error) {
			t.Helper()
			if err != nil || gone != want {
				t.Errorf("%s: gone %v, %v, want %v", what, gone, err, want)
			}
		}
	}
	expectExists := func(path string, want bool) {
		t.Helper()
		if exists, err := store.Exists(ctx, path); err != nil || exists != want {
			t.Errorf("Exists(%s) = %v, %v, want %v", path, exists, err, want)
		}
	}
	const path = "ab/abc.pcm"
	if _, _, err := store.Get(ctx, path); !errors.Is(err, speech.ErrBlobNotFound) {
		t.Errorf("Get of a missing blob returned %v, want ErrBlobNotFound", err)
	}
	expectExists(path, false)
	first := put(path, "audio")
	second := put(path, "audio")
	if first == second {
		t.Errorf("Put of an existing blob kept version %s, want a new one", first)
	}
	expectExists(path, true)
	expectGone("DeleteVersion of a replaced version", false)(store.DeleteVersion(ctx, path, first))
	expectExists(path, true)
	expectGone("DeleteVersion", true)(store.DeleteVersion(ctx, path, second))
	expectExists(path, false)
	expectGone("DeleteVersion of a missing blob", true)(store.DeleteVersion(ctx, path, second))

	put(path, "audio")
	expectGone("DeleteUnmodifiedSince before the Put", false)(store.DeleteUnmodifiedSince(ctx, path, time.Now().Add(-time.Hour)))
	expectExists(path, true)
	expectGone("DeleteUnmodifiedSince after the Put", true)(store.DeleteUnmodifiedSince(ctx, path, time.Now().Add(time.Hour)))
	expectExists(path, false)
	expectGone("DeleteUnmodifiedSince of a missing blob", true)(store.DeleteUnmodifiedSince(ctx, path, time.Now()))

	paths := []string{"a-/x.pcm", "a/x.alaw", "a/x.pcm", "ab/a.pcm", "b/a.pcm"}
	for _, path := range slices.Backward(paths) {
		put(path, path)
	}
	var listed []string
	for after := ""; ; after = listed[len(listed)-1] {
		page, err := store.List(ctx, after, 2)
		if err != nil || len(page) > 2 {
			t.Fatalf("List(%q, 2): %d blobs, %v; want at most 2", after, len(page), err)
		}
		if len(page) == 0 {
			break
		}
		for _, b := range page {
			if age := time.Since(b.ModifiedAt); b.Bytes != int64(len(b.Path)) || age < -time.Hour || age > time.Hour {
				t.Errorf("List returned %+v, want %d bytes and a recent modification time", b, len(b.Path))
			}
			listed = append(listed, b.Path)
		}
	}
	if fmt.Sprint(listed) != fmt.Sprint(paths) {
		t.Errorf("List: %v, want %v", listed, paths)
	}
}
