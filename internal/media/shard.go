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
	folder  *os.File    // the same once more, to be synced
	info    fs.FileInfo // which folder it is
	durable atomic.Bool // it outlives a crash
	kept    bool
}

// shards keeps folders open for the next who needs them.
type shards struct {
	byName sync.Map // of *shard
	count  atomic.Int64
	making sync.Mutex
}

// maxKept bounds the file descriptors: 256 shards are what hashes make, and each
// takes two.
const maxKept = 512

// shard opens the folder of a shard, to be let go of with done. A link is none:
// an object has one path. A folder that was kept is used only while the name still
// stands for it, or a folder that somebody moves away would take uploads along.
func (s *Store) shard(name string) (*shard, error) {
	info, err := s.root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	old, ok := s.shards.byName.Load(name)
	if ok && os.SameFile(old.(*shard).info, info) {
		return old.(*shard), nil
	}
	dir, err := s.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	d := &shard{Root: dir}
	if d.folder, err = dir.Open("."); err == nil {
		d.info, err = d.folder.Stat()
	}
	if err != nil {
		d.done()
		return nil, err
	}
	if ok || s.shards.count.Load() < maxKept {
		d.kept = true
		if _, there := s.shards.byName.Swap(name, d); !there {
			s.shards.count.Add(1)
		} // the one before is closed when nobody uses it any more
	}
	return d, nil
}

// done closes what is not kept.
func (d *shard) done() {
	if !d.kept {
		d.folder.Close()
		d.Close()
	}
}

func (sh *shards) close() {
	sh.byName.Range(func(_, d any) bool {
		d.(*shard).kept = false
		d.(*shard).done()
		return true
	})
}

// sync makes a file, or the names in a folder, outlive a crash.
func (s *Store) sync(f *os.File) error {
	if s.unsynced {
		return nil
	}
	return f.Sync()
}

// makeShard is shard for an upload: the folder is there for good when it returns.
func (s *Store) makeShard(name string) (*shard, error) {
	d, err := s.shard(name)
	switch {
	case err == nil && d.durable.Load():
		return d, nil
	case err == nil:
		d.done()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open a shard: %w", err)
	}
	s.shards.making.Lock()
	defer s.shards.making.Unlock()
	err = s.root.Mkdir(name, 0o750)
	if err == nil || errors.Is(err, fs.ErrExist) {
		if err = s.sync(s.folder); err != nil {
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
