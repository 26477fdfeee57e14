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
)

// The store evicts the least recently used blobs. It keeps the time of last use
// in the access time of the file, so that it survives a restart. It collects
// access times in memory and writes them every few seconds, before blobs are
// selected for eviction, and on Close. A crash loses those of the last seconds.
const (
	flushUsesInterval = 5 * time.Second
	maxPendingUses    = 16 << 10
)

// uses holds access times that are not written yet.
type uses struct {
	flushing         sync.Mutex
	mu               sync.Mutex
	pending, writing map[Path]time.Time
}

// used records the use of a blob. An unlimited store needs no record.
func (s *Store) used(p Path) {
	if s.maxBytes == 0 {
		return
	}
	s.uses.mu.Lock()
	s.uses.pending[p] = time.Now()
	full := len(s.uses.pending) >= maxPendingUses
	s.uses.mu.Unlock()
	if full {
		s.uses.flush(s.root)
	}
}

func (u *uses) has(p Path) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, pending := u.pending[p]
	_, writing := u.writing[p]
	return pending || writing
}

// flush writes the pending access times. It ignores errors: the blob is gone, or
// is evicted a little early.
func (u *uses) flush(root *os.Root) {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	u.mu.Lock()
	u.writing, u.pending = u.pending, make(map[Path]time.Time, len(u.pending))
	u.mu.Unlock()
	for p, at := range u.writing {
		_ = root.Chtimes(string(p), at, time.Time{})
	}
	u.mu.Lock()
	u.writing = nil
	u.mu.Unlock()
}

// Run writes access times until ctx ends.
func (s *Store) Run(ctx context.Context) {
	tick := time.NewTicker(flushUsesInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.uses.flush(s.root)
		}
	}
}

// evictionQueue holds the least recently used blobs of the last scan, oldest
// first. Blobs outside the queue, and blobs used since the scan, were used more
// recently. Evicting from the front and skipping blobs used since the scan
// therefore follows the exact order, without an index of all blobs in memory.
type evictionQueue struct {
	mu   sync.Mutex
	list []candidate
}

type candidate struct {
	path Path
	used time.Time
}

// A scan reads all files. Queueing 1/queueDivisor of them spreads its cost over
// many evictions.
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
	for scanned := false; s.bytes.Load() > s.maxBytes; {
		if len(s.queue.list) > 0 {
			oldest := s.queue.list[0]
			s.queue.list = s.queue.list[1:]
			switch err := s.evict(oldest); {
			case err == nil:
				s.evicted.Add(1)
				scanned = false
			case !errors.Is(err, errInUse) && !errors.Is(err, ErrNotFound):
				s.log.Error("evict blob", "error", err)
			}
			continue
		}
		if scanned {
			return // all blobs are in use or cannot be removed
		}
		if err := s.scan(); err != nil {
			s.log.Error("select blobs for eviction", "error", err)
			return
		}
		scanned = true
	}
}

var errInUse = errors.New("blob in use")

// evict removes a blob, or returns errInUse if it was used since the scan.
func (s *Store) evict(c candidate) error {
	unsynced := func(fd) error { return nil }
	return s.deleteIf(c.path, unsynced, func(info unix.Stat_t) error {
		if !accessed(info).Equal(c.used) || s.uses.has(c.path) {
			return errInUse
		}
		return nil
	})
}

// scan removes empty shards, counts the blobs, and fills the eviction queue of a
// limited store. Blobs can be read but not changed meanwhile.
func (s *Store) scan() error {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.uses.flush(s.root)
	shards, err := s.rootFD.list(".")
	if err != nil {
		return fmt.Errorf("read media root: %w", err)
	}
	for _, shard := range slices.DeleteFunc(shards, func(name string) bool { return !isName(name) }) {
		_ = s.rootFD.remove(shard, unix.AT_REMOVEDIR) // fails unless it is empty
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
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	return list[:min(n, len(list))]
}
