package media

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// unfinished begins the names of files that are being uploaded. No path can
// name such a file.
const unfinished = ".upload-"

// uploads are what uploads of one process share.
type uploads struct {
	boot    string       // in their files' names: no two processes share it
	serial  atomic.Int64 // the rest of the name
	last    atomic.Int64 // the time the last one was given
	buffers sync.Pool
	naming  chan struct{} // held to make or rename a file: many at a time only stand in each other's way in the kernel
}

func newUploads() uploads {
	return uploads{boot: rand.Text(), naming: make(chan struct{}, 2*runtime.GOMAXPROCS(0)), buffers: sync.Pool{New: func() any { return new([64 << 10]byte) }}}
}

// Put stores size bytes of body under a path and reports whether there was
// nothing before. When it returns nil, the object is on disk for good, unless
// the store leaves that to the system; otherwise nothing is left of it. Allow may
// refuse by what is to be replaced, nil where there is nothing.
//
// The bytes go to a file beside their place, so that giving them their name
// crosses no file system and touches one folder.
func (s *Store) Put(p Path, body io.Reader, size int64, allow func(current fs.FileInfo) error) (created bool, err error) {
	shard, file := p.split()
	dir, err := s.makeShard(shard)
	if err != nil {
		return false, err
	}
	defer dir.done()
	temp := unfinished + s.uploads.boot + "-" + strconv.FormatInt(s.uploads.serial.Add(1), 36)
	defer func() {
		if err != nil {
			_ = dir.Remove(temp) // not there any more, or swept at the next start
		}
	}()
	if err := s.write(dir, temp, body, size); err != nil {
		return false, err
	}

	unlock := s.lockPath(p)
	created, err = s.commit(dir, p, temp, file, size, allow)
	if err == nil {
		s.used(p) // an older use that is not written down yet must not date it back
	}
	unlock()
	s.makeRoom()
	return created, err
}

func (s *Store) write(dir *shard, temp string, body io.Reader, size int64) error {
	// O_NONBLOCK means nothing for a file, but spares Go's attempt to poll it.
	s.uploads.naming <- struct{}{}
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NONBLOCK, 0o640)
	<-s.uploads.naming
	if err != nil {
		return fmt.Errorf("begin an upload: %w", err)
	}
	defer f.Close()
	buffer := s.uploads.buffers.Get().(*[64 << 10]byte)
	defer s.uploads.buffers.Put(buffer)
	for left := size; left > 0; {
		part := buffer[:min(left, int64(len(buffer)))]
		if _, err = io.ReadFull(body, part); err == nil { // as few writes as it takes
			_, err = f.Write(part)
		}
		if err != nil {
			return fmt.Errorf("write an upload: %w", err)
		}
		left -= int64(len(part))
	}
	now := s.moment()
	if err := dir.Chtimes(temp, now, now); err != nil {
		return fmt.Errorf("date an upload: %w", err)
	}
	if err := s.sync(f); err != nil {
		return fmt.Errorf("make an upload durable: %w", err)
	}
	return nil
}

// commit gives an upload its name. The path must be locked.
func (s *Store) commit(dir *shard, p Path, temp, file string, size int64, allow func(fs.FileInfo) error) (created bool, err error) {
	old, err := dir.Lstat(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for an object: %w", err)
	}
	var oldSize int64
	if created = err != nil || !old.Mode().IsRegular(); created {
		old = nil
	} else {
		oldSize = old.Size()
	}
	if err := allow(old); err != nil {
		return false, err
	}
	if err := s.change(p, func() error {
		s.uploads.naming <- struct{}{}
		defer func() { <-s.uploads.naming }()
		return dir.Rename(temp, file)
	}); err != nil {
		return false, fmt.Errorf("name an upload: %w", err)
	}
	s.bytes.Add(size - oldSize)
	if created {
		s.objects.Add(1)
	}
	if err := s.sync(dir.folder); err != nil {
		// What may be gone after a crash must not be served before one.
		return false, errors.Join(fmt.Errorf("make an upload's name durable: %w", err), s.remove(dir, p, size))
	}
	return created, nil
}

// moment is a time that no other upload has: it is what their tags are made of.
func (s *Store) moment() time.Time {
	for {
		last := s.uploads.last.Load()
		now := max(time.Now().UnixNano(), last+1)
		if s.uploads.last.CompareAndSwap(last, now) {
			return time.Unix(0, now)
		}
	}
}

// full tells whether there was no room for an upload.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
