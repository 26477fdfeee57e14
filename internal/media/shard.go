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

// shard is an open directory of a shard.
type shard struct {
	*os.Root
	dirFD
	file    *os.File // owns dirFD
	id      fileID
	durable atomic.Bool // its name survives a crash
	cached  bool
}

// shardCache keeps directories open.
type shardCache struct {
	mu     sync.RWMutex
	byName map[string]*shard
	making sync.Mutex // held while directories are created
}

// maxCachedShards bounds the open files. Hashes use 256 shards, with two
// descriptors each.
const maxCachedShards = 512

func (c *shardCache) get(name string) *shard {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byName[name]
}

// put caches an open directory. One that it replaces is closed by the garbage
// collector, because it may still be in use.
func (c *shardCache) put(name string, d *shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName[name] != nil || len(c.byName) < maxCachedShards {
		c.byName[name], d.cached = d, true
	}
}

func (c *shardCache) close() {
	for _, d := range c.byName {
		d.cached = false
		d.release()
	}
}

// ErrPathOccupied is returned when a file or directory that the store did not
// create has the path of a blob or shard.
var ErrPathOccupied = errors.New("path occupied by another file")

// shard opens the directory of a shard. The caller releases it. Symbolic links
// are not followed: a blob has one path. A cached directory is used only if the
// name still refers to it, so that uploads don't go to one that was moved away.
func (s *Store) shard(name string) (*shard, error) {
	id, err := s.rootFD.lstat(name)
	if err == nil && !id.isDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if cached := s.shards.get(name); cached != nil && cached.id.same(id) {
		return cached, nil
	}
	dir, err := s.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	d := &shard{Root: dir}
	if d.file, err = dir.Open("."); err == nil {
		d.dirFD = dirFD(d.file.Fd())
		d.id, err = d.lstat(".")
	}
	if err != nil {
		d.release()
		return nil, err
	}
	s.shards.put(name, d)
	return d, nil
}

// release closes a directory that is not cached.
func (d *shard) release() {
	if !d.cached {
		_ = d.file.Close()
		_ = d.Root.Close()
	}
}

// makeShard opens the directory of a shard, and creates it durably if it is
// missing.
func (s *Store) makeShard(name string) (*shard, error) {
	d, err := s.shard(name)
	switch {
	case err == nil && d.durable.Load():
		return d, nil
	case err == nil:
		d.release()
	case errors.Is(err, syscall.ENOTDIR):
		return nil, ErrPathOccupied
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open shard: %w", err)
	}
	s.shards.making.Lock()
	defer s.shards.making.Unlock()
	err = s.root.Mkdir(name, 0o750)
	if err == nil || errors.Is(err, fs.ErrExist) {
		if err = s.syncDir(s.rootFD); err != nil {
			s.rootFD.removeEmptyDir(name)
		}
	}
	if err == nil {
		d, err = s.shard(name)
	}
	if err != nil {
		return nil, fmt.Errorf("create shard: %w", err)
	}
	d.durable.Store(true)
	return d, nil
}

// syncDir makes the names in a directory durable, unless the store is unsynced.
func (s *Store) syncDir(d dirFD) error {
	if s.unsynced {
		return nil
	}
	return fsync(d)
}
