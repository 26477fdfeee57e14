package media

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"telapi/internal/background"
)

// The store evicts the least recently used blobs. The access time of a file is the
// time of its last use, so that it survives a restart. The store collects access
// times in memory and writes them to the files every few seconds, before blobs are
// selected for eviction, and on Close. A crash loses those of the last seconds.
const (
	accessFlushInterval = 5 * time.Second
	maxPendingAccesses  = 16 << 10
)

// accessTimes holds access times that are not written to their files yet.
type accessTimes struct {
	flushing         sync.Mutex // one flush at a time
	mu               sync.Mutex // guards the maps
	pending, writing map[Path]time.Time
}

// recordAccess records the use of a blob. An unlimited store needs no access times.
func (s *Store) recordAccess(p Path) {
	if s.maxBytes == 0 {
		return
	}
	s.accessTimes.mu.Lock()
	s.accessTimes.pending[p] = time.Now()
	full := len(s.accessTimes.pending) >= maxPendingAccesses
	s.accessTimes.mu.Unlock()
	if full {
		s.accessTimes.flush(s.root)
	}
}

func (a *accessTimes) has(p Path) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, pending := a.pending[p]
	_, writing := a.writing[p]
	return pending || writing
}

// flush writes the pending access times. It ignores errors: either the blob does not
// exist any more, or it is evicted too early.
func (a *accessTimes) flush(root *os.Root) {
	a.flushing.Lock()
	defer a.flushing.Unlock()
	for p, at := range a.beginWriting() {
		_ = root.Chtimes(string(p), at, time.Time{})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writing = nil
}

// beginWriting returns the pending access times. Later uses are recorded for the next flush, so
// that they do not wait for this one, unless there are maxPendingAccesses.
func (a *accessTimes) beginWriting() map[Path]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writing, a.pending = a.pending, make(map[Path]time.Time, len(a.pending))
	return a.writing
}

// Run writes access times until ctx ends.
func (s *Store) Run(ctx context.Context) {
	for background.Sleep(ctx, accessFlushInterval) == nil {
		s.accessTimes.flush(s.root)
	}
}

// evictionQueue holds the least recently used blobs of the last scan, oldest first.
// All other blobs were used more recently. So the store evicts the first blob of the
// queue, unless it was used since the scan. This is the exact order, without an index
// of all blobs in memory.
type evictionQueue struct {
	mu   sync.Mutex
	list []candidate
}

type candidate struct {
	path     Path
	lastUsed time.Time
}

// A scan visits all files. It queues 1/queueDivisor of them, so that many evictions
// need only one scan.
const (
	queueDivisor = 8
	minQueued    = 1 << 10
	maxQueued    = 64 << 10
)

// evictToFit evicts blobs until the store is within its limit. If it cannot free
// enough, the store stays over the limit and the next upload tries again.
func (s *Store) evictToFit() {
	if s.maxBytes == 0 || s.bytes.Load() <= s.maxBytes {
		return
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	scanned := false // since the last eviction
	for s.bytes.Load() > s.maxBytes {
		if len(s.queue.list) == 0 {
			if scanned {
				return // all blobs are in use or cannot be removed
			}
			if err := s.scan(); err != nil {
				s.log.Error("select blobs for eviction", "error", err)
				return
			}
			scanned = true
			continue
		}
		oldest := s.queue.list[0]
		s.queue.list = s.queue.list[1:]
		switch err := s.evict(oldest); {
		case err == nil:
			s.evicted.Add(1)
			scanned = false
		case !errors.Is(err, errInUse) && !errors.Is(err, errNotFound):
			s.log.Error("evict blob", "error", err)
		}
	}
}

var errInUse = errors.New("blob in use")

// evict removes a blob, or returns errInUse if it was used since the scan. After a crash the
// blob may exist again.
func (s *Store) evict(c candidate) error {
	unsynced := func(fd) error { return nil }
	return s.deleteIf(c.path, unsynced, func(info unix.Stat_t) error {
		if !accessed(info).Equal(c.lastUsed) || s.accessTimes.has(c.path) {
			return errInUse
		}
		return nil
	})
}

// scan removes empty shards, counts the blobs and, if the store has a limit, fills
// the eviction queue. During a scan, blobs can be read but not changed.
func (s *Store) scan() error {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.accessTimes.flush(s.root)
	shards, err := s.rootFD.list(".")
	if err != nil {
		return fmt.Errorf("read media root: %w", err)
	}
	for _, shard := range shards {
		if isName(shard) {
			_ = s.rootFD.remove(shard, unix.AT_REMOVEDIR) // fails unless it is empty
		}
	}
	var bytes, objects int64
	var oldest []candidate
	queued := min(max(minQueued, int(s.objects.Load())/queueDivisor), maxQueued)
	err = s.walk("", func(p Path, info unix.Stat_t) bool {
		objects++
		bytes += info.Size
		if s.maxBytes > 0 {
			oldest = append(oldest, candidate{p, accessed(info)})
		}
		if len(oldest) > 2*queued {
			oldest = keepOldest(oldest, queued)
		}
		return true
	})
	if err != nil {
		return err
	}
	s.bytes.Store(bytes)
	s.objects.Store(objects)
	s.queue.list = keepOldest(oldest, queued)
	return nil
}

func keepOldest(list []candidate, n int) []candidate {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(a.lastUsed.Compare(b.lastUsed), cmp.Compare(a.path, b.path))
	})
	return list[:min(n, len(list))]
}
