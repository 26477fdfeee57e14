package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// unfinished is the folder of files that are being uploaded. No path can name
// it, and who opens the root empties it.
const unfinished = ".uploads"

// uploads are what uploads of one process share.
type uploads struct {
	folder  atomic.Int64 // opened
	serial  atomic.Int64 // their files' names
	last    atomic.Int64 // the time the last one was given
	buffers sync.Pool    // of *buffer
}

type buffer [64 << 10]byte

// beginUploads removes what uploads of an earlier process left.
func (s *Store) beginUploads() error {
	s.uploads.buffers.New = func() any { return new(buffer) }
	if err := s.root.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("sweep unfinished uploads: %w", err)
	}
	_, err := s.uploadFolder(0)
	return err
}

// uploadFolder opens the folder of unfinished uploads, unless another than the
// last one is open already. That stays open: somebody may be using it.
func (s *Store) uploadFolder(last opened) (opened, error) {
	s.shards.making.Lock()
	defer s.shards.making.Unlock()
	if now := opened(s.uploads.folder.Load()); now != last {
		return now, nil
	}
	if err := s.root.Mkdir(unfinished, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, fmt.Errorf("make the folder of uploads: %w", err)
	}
	folder, err := s.top.openFolder(unfinished)
	if err != nil {
		return 0, fmt.Errorf("open the folder of uploads: %w", err)
	}
	s.uploads.folder.Store(int64(folder))
	return folder, nil
}

// Put stores size bytes of body under a path and reports whether there was
// nothing before. When it returns nil, the object is on disk for good, unless
// the store leaves that to the system; otherwise nothing is left of it. Allow may
// refuse by what is to be replaced, nil where there is nothing.
//
// The bytes of all uploads go to files of one folder: file systems keep what
// begins in one folder together, and files that begin in hundreds of shards make
// them look for room in hundreds of places.
func (s *Store) Put(p Path, body io.Reader, size int64, allow func(current fs.FileInfo) error) (created bool, err error) {
	from, temp := opened(s.uploads.folder.Load()), strconv.FormatInt(s.uploads.serial.Add(1), 36)
	f, err := from.create(temp)
	if errors.Is(err, fs.ErrNotExist) { // somebody has tidied up
		if from, err = s.uploadFolder(from); err == nil {
			f, err = from.create(temp)
		}
	}
	if err != nil {
		return false, fmt.Errorf("begin an upload: %w", err)
	}
	defer func() {
		if err != nil {
			from.discard(temp)
		}
	}()
	if err := s.write(from, temp, f, body, size); err != nil {
		return false, err
	}

	unlock := s.lockPath(p)
	created, err = s.commit(from, temp, p, size, allow)
	if err == nil {
		s.used(p) // an older use that is not written down yet must not date it back
	}
	unlock()
	s.makeRoom()
	return created, err
}

// write fills a new file, and closes it.
func (s *Store) write(from opened, temp string, f writing, body io.Reader, size int64) error {
	defer f.close()
	buffer := s.uploads.buffers.Get().(*buffer)
	defer s.uploads.buffers.Put(buffer)
	for left := size; left > 0; {
		part := buffer[:min(left, int64(len(buffer)))]
		_, err := io.ReadFull(body, part) // as few writes as it takes
		if err == nil {
			err = f.write(part)
		}
		if err != nil {
			return fmt.Errorf("write an upload: %w", err)
		}
		left -= int64(len(part))
	}
	if err := from.date(temp, s.moment()); err != nil {
		return fmt.Errorf("date an upload: %w", err)
	}
	if err := s.sync(f); err != nil {
		return fmt.Errorf("make an upload durable: %w", err)
	}
	return nil
}

// commit gives an upload its place. The path must be locked.
func (s *Store) commit(from opened, temp string, p Path, size int64, allow func(fs.FileInfo) error) (created bool, err error) {
	shard, file := p.split()
	dir, err := s.makeShard(shard)
	if err != nil {
		return false, err
	}
	defer dir.done()
	old, oldSize, err := dir.current(file)
	if err != nil {
		return false, err
	}
	if err := allow(old); err != nil {
		return false, err
	}
	if err := s.change(p, func() error { return from.move(temp, dir.opened, file) }); err != nil {
		return false, fmt.Errorf("name an upload: %w", err)
	}
	s.bytes.Add(size - oldSize)
	if old == nil {
		s.objects.Add(1)
	}
	if err := s.sync(dir); err != nil {
		// What may be gone after a crash must not be served before one.
		return false, errors.Join(fmt.Errorf("make an upload's name durable: %w", err), s.remove(dir, p, size))
	}
	return old == nil, nil
}

// current is the object that an upload replaces, or nil.
func (d *shard) current(file string) (old fs.FileInfo, size int64, err error) {
	if _, err = d.lstat(file); err == nil {
		old, err = d.Lstat(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("look for an object: %w", err)
	case old.IsDir():
		return nil, 0, ErrOccupied
	case !old.Mode().IsRegular():
		return nil, 0, nil
	}
	return old, old.Size(), nil
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
