package media

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// shard is the folder of a shard, opened.
type shard struct {
	*os.Root
	opened
	file    *os.File // what is opened
	which   identity
	durable atomic.Bool // it outlives a crash
	kept    bool
}

// shards keeps folders open for the next who needs them.
type shards struct {
	mu     sync.RWMutex
	byName map[string]*shard
	making sync.Mutex
}

func (sh *shards) get(name string) *shard {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.byName[name]
}

// keep takes an opened folder in the place of one before, which is closed when
// nobody uses it any more.
func (sh *shards) keep(name string, d *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.byName[name] != nil || len(sh.byName) < maxKept {
		sh.byName[name], d.kept = d, true
	}
}

func (sh *shards) close() {
	for _, d := range sh.byName {
		d.kept = false
		d.done()
	}
}

// maxKept bounds the file descriptors: 256 shards are what hashes make, and each
// takes two.
const maxKept = 512

// ErrOccupied says that something is in the place of an object or a shard that
// the store has not put there and does not replace.
var ErrOccupied = errors.New("something else is in the place of an object")

// shard opens the folder of a shard, to be let go of with done. A link is none:
// an object has one path. A folder that was kept is used only while the name
// still stands for it, or one that somebody moves away would take uploads along.
func (s *Store) shard(name string) (*shard, error) {
	which, err := s.top.lstat(name)
	if err == nil && !which.isFolder() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if old := s.shards.get(name); old != nil && old.which.same(which) {
		return old, nil
	}
	dir, err := s.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	d := &shard{Root: dir}
	if d.file, err = dir.Open("."); err == nil {
		d.opened = opened(d.file.Fd())
		d.which, err = d.lstat(".")
	}
	if err != nil {
		d.done()
		return nil, err
	}
	s.shards.keep(name, d)
	return d, nil
}

// done closes what is not kept.
func (d *shard) done() {
	if !d.kept {
		_ = d.file.Close()
		_ = d.Root.Close()
	}
}

// sync makes a file, or the names in a folder, outlive a crash.
func (s *Store) sync(o interface{ sync() error }) error {
	if s.unsynced {
		return nil
	}
	return o.sync()
}

// makeShard is shard for an upload: the folder is there for good when it returns.
func (s *Store) makeShard(name string) (*shard, error) {
	d, err := s.shard(name)
	switch {
	case err == nil && d.durable.Load():
		return d, nil
	case err == nil:
		d.done()
	case errors.Is(err, syscall.ENOTDIR):
		return nil, ErrOccupied
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open a shard: %w", err)
	}
	s.shards.making.Lock()
	defer s.shards.making.Unlock()
	err = s.root.Mkdir(name, 0o750)
	if err == nil || errors.Is(err, fs.ErrExist) {
		if err = s.sync(s.top); err != nil {
			_ = s.root.Remove(name) // while it is empty
		}
	}
	if err == nil {
		d, err = s.shard(name)
	}
	if err != nil {
		return nil, fmt.Errorf("make a shard: %w", err)
	}
	d.durable.Store(true)
	return d, nil
}
