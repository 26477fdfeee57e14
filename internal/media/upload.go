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

// unfinished is where files stand that are being uploaded. No path can name it,
// and who opens the root empties it.
const unfinished = ".uploads"

// uploads are what uploads of one process share.
type uploads struct {
	folders [4]atomic.Int64 // opened; more than one, since a folder takes one new name at a time
	serial  atomic.Int64    // their files' names
	last    atomic.Int64    // the time the last one was given
	buffers sync.Pool       // of *buffer
}

type buffer [64 << 10]byte

// beginUploads removes what uploads of an earlier process left.
func (s *Store) beginUploads() error {
	s.uploads.buffers.New = func() any { return new(buffer) }
	if err := s.root.RemoveAll(unfinished); err != nil {
		return fmt.Errorf("sweep unfinished uploads: %w", err)
	}
	for i := range s.uploads.folders {
		if _, err := s.uploadFolder(i, 0); err != nil {
			return err
		}
	}
	return nil
}

// uploadFolder opens a folder of unfinished uploads, unless another than the
// last one is open already. That stays open: somebody may be using it.
func (s *Store) uploadFolder(i int, last opened) (opened, error) {
	s.shards.making.Lock()
	defer s.shards.making.Unlock()
	if now := opened(s.uploads.folders[i].Load()); now != last {
		return now, nil
	}
	all, err := s.top.makeFolder(unfinished)
	if err != nil {
		return 0, fmt.Errorf("make the folder of uploads: %w", err)
	}
	defer all.close()
	folder, err := all.makeFolder(strconv.Itoa(i))
	if err != nil {
		return 0, fmt.Errorf("make a folder of uploads: %w", err)
	}
	s.uploads.folders[i].Store(int64(folder))
	return folder, nil
}

func (s *Store) endUploads() {
	for i := range s.uploads.folders {
		if folder := opened(s.uploads.folders[i].Load()); folder > 0 {
			folder.close()
		}
	}
}

// Put stores size bytes of body under a path and reports whether there was
// nothing before. When it returns nil, the object is on disk for good, unless
// the store leaves that to the system; otherwise nothing is left of it.
//
// The bytes of all uploads go to files of a few folders: file systems keep what
// begins in one folder together, and files that begin in hundreds of shards make
// them look for room in hundreds of places.
func (s *Store) Put(p Path, body io.Reader, size int64, allow Condition) (created bool, err error) {
	serial := s.uploads.serial.Add(1)
	folder, temp := int(serial%int64(len(s.uploads.folders))), strconv.FormatInt(serial, 36)
	from := opened(s.uploads.folders[folder].Load())
	f, err := from.create(temp)
	if errors.Is(err, fs.ErrNotExist) { // somebody has tidied up
		if from, err = s.uploadFolder(folder, from); err == nil {
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
func (s *Store) commit(from opened, temp string, p Path, size int64, allow Condition) (created bool, err error) {
	shard, file := p.split()
	dir, err := s.makeShard(shard)
	if err != nil {
		return false, err
	}
	defer dir.done()
	created, replaced, err := s.place(from, temp, p, dir, file, allow)
	if err != nil {
		return false, err
	}
	s.bytes.Add(size - replaced)
	if created {
		s.objects.Add(1)
	}
	if err := s.sync(dir); err != nil {
		// What may be gone after a crash must not be served before one.
		return false, errors.Join(fmt.Errorf("make an upload's name durable: %w", err), s.remove(dir, p, size))
	}
	return created, nil
}

// place moves an upload where it belongs, and tells how many bytes it replaces.
func (s *Store) place(from opened, temp string, p Path, to *shard, file string, allow Condition) (created bool, replaced int64, err error) {
	// Most uploads are of what is not there yet: the file system sees to that with
	// less work than looking first takes.
	if allow == nil && s.change(p, func() error { return from.moveNew(temp, to.opened, file) }) == nil {
		return true, 0, nil
	}
	old, replaced, err := to.current(file)
	if err != nil {
		return false, 0, err
	}
	if err := allow.of(old); err != nil {
		return false, 0, err
	}
	if err := s.change(p, func() error { return from.move(temp, to.opened, file) }); err != nil {
		return false, 0, fmt.Errorf("name an upload: %w", err)
	}
	return old == nil, replaced, nil
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
