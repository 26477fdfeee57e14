package media

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// The order in which objects were used is kept in their files' access times, so
// that a restart does not forget it. They are written by us alone, and late:
// what was used waits in memory for a moment, and is written down every few
// seconds, before objects are chosen to go, and at the end. A kill forgets the
// uses of the last seconds, nothing else.
const (
	writeUsesEvery = 5 * time.Second
	maxPendingUses = 16 << 10
)

// uses are the objects that were used and whose files do not show it yet.
type uses struct {
	flushing         sync.Mutex
	mu               sync.Mutex
	pending, writing map[Path]time.Time
}

// used notes that somebody asked for an object. Without a cap nobody needs to know.
func (s *Store) used(p Path) {
	if s.maxBytes == 0 {
		return
	}
	s.uses.mu.Lock()
	s.uses.pending[p] = time.Now()
	crowded := len(s.uses.pending) >= maxPendingUses
	s.uses.mu.Unlock()
	if crowded {
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

// flush writes uses down. One that cannot be written is forgotten: its object is
// gone, or may go a little early.
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

// Run writes down uses until ctx ends.
func (s *Store) Run(ctx context.Context) {
	tick := time.NewTicker(writeUsesEvery)
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

// queue holds the objects that go next: those used least recently when the store
// was last surveyed, oldest first. Whatever was used since is newer than all of
// them, so taking from the front and passing over what was used keeps the exact
// order, without knowing of every object all the time.
type queue struct {
	mu   sync.Mutex
	list []candidate
}

type candidate struct {
	path Path
	used time.Time
}

// A survey looks at every object; remembering this part of them (and no more
// than this many) spreads its cost over as many evictions.
const (
	queuedPart = 8
	minQueued  = 1 << 10
	maxQueued  = 64 << 10
)

// makeRoom lets objects go until the rest fits. Where that fails the cap is
// overrun until the next upload tries again: what was stored stays stored.
func (s *Store) makeRoom() {
	if s.maxBytes == 0 || s.bytes.Load() <= s.maxBytes {
		return
	}
	s.next.mu.Lock()
	defer s.next.mu.Unlock()
	for surveyed := false; s.bytes.Load() > s.maxBytes; {
		if len(s.next.list) > 0 {
			oldest := s.next.list[0]
			s.next.list = s.next.list[1:]
			gone, err := s.evict(oldest)
			if err != nil {
				s.log.Error("an object could not be evicted", "error", err)
			}
			surveyed = surveyed && !gone
			continue
		}
		if surveyed {
			return // all that is left was used this very moment, or cannot be removed
		}
		if err := s.survey(); err != nil {
			s.log.Error("no objects could be chosen to go", "error", err)
			return
		}
		surveyed = true
	}
}

// evict removes an object unless it was used since it was chosen.
func (s *Store) evict(c candidate) (gone bool, err error) {
	shard, file := c.path.split()
	dir, err := s.shard(shard)
	if err != nil {
		return false, ignoreAbsent(err)
	}
	defer dir.done()
	defer s.lockPath(c.path)()
	info, err := dir.Lstat(file)
	if err != nil || !accessed(info).Equal(c.used) || s.uses.has(c.path) {
		return false, ignoreAbsent(err)
	}
	if err := s.remove(dir, c.path, info.Size()); err != nil {
		return false, ignoreAbsent(err)
	}
	s.evicted.Add(1)
	return true, nil
}

func ignoreAbsent(err error) error {
	if err = absent(err); errors.Is(err, ErrNoObject) {
		return nil
	}
	return err
}

// survey looks at all there is: it removes shards that nothing is left in,
// counts, and, with a cap, queues what is to go next. Objects can be read but not
// changed meanwhile.
func (s *Store) survey() error {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.uses.flush(s.root)
	shards, err := s.shardNames()
	if err != nil {
		return err
	}
	var bytes, objects int64
	var oldest []candidate
	queued := min(max(minQueued, int(s.objects.Load())/queuedPart), maxQueued)
	for _, shard := range shards {
		infos, err := s.files(shard)
		if err != nil {
			return err
		}
		if len(infos) == 0 {
			s.top.removeEmpty(shard)
		}
		for _, info := range infos {
			p, ours := ParsePath(shard + "/" + info.Name())
			if !ours {
				continue
			}
			objects++
			bytes += info.Size()
			if s.maxBytes > 0 {
				oldest = append(oldest, candidate{p, accessed(info)})
			}
		}
		if len(oldest) > 2*queued {
			oldest = keepOldest(oldest, queued)
		}
	}
	s.bytes.Store(bytes)
	s.objects.Store(objects)
	s.next.list = keepOldest(oldest, queued)
	return nil
}

func keepOldest(list []candidate, n int) []candidate {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	return list[:min(n, len(list))]
}
