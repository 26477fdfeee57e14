package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// uploadsDir contains unfinished uploads. It is not a valid shard name.
const uploadsDir = ".uploads"

// uploads is the state of unfinished uploads. They are written to a few directories
// and then moved to their shards. File systems allocate the files of one directory
// together, so creating them in hundreds of shards would scatter them over the disk.
// A single directory would be a bottleneck, because a file system adds one name at a
// time.
type uploads struct {
	dirs     [4]atomic.Int64 // open descriptors
	serial   atomic.Int64    // for file names
	lastTime atomic.Int64
	buffers  sync.Pool // of *uploadBuffer
}

type uploadBuffer [64 << 10]byte

// openUploads removes unfinished uploads of an earlier process.
func (s *Store) openUploads() error {
	s.uploads.buffers.New = func() any { return new(uploadBuffer) }
	if err := s.root.RemoveAll(uploadsDir); err != nil {
		return fmt.Errorf("remove unfinished uploads: %w", err)
	}
	for i := range s.uploads.dirs {
		if _, err := s.openUploadDir(i, 0); err != nil { // 0: none is open
			return err
		}
	}
	return nil
}

// openUploadDir opens an upload directory, and creates it if it is missing, unless another
// upload has done so since the caller read old. The old descriptor stays open, because
// other uploads may use it.
func (s *Store) openUploadDir(i int, old fd) (fd, error) {
	s.dirsMu.Lock()
	defer s.dirsMu.Unlock()
	if current := fd(s.uploads.dirs[i].Load()); current != old {
		return current, nil
	}
	parent, err := s.rootFD.makeDir(uploadsDir)
	if err != nil {
		return 0, fmt.Errorf("create upload directory: %w", err)
	}
	defer parent.close()
	dir, err := parent.makeDir(strconv.Itoa(i))
	if err != nil {
		return 0, fmt.Errorf("create upload directory: %w", err)
	}
	s.uploads.dirs[i].Store(int64(dir))
	return dir, nil
}

// errBody is returned when the body of an upload cannot be read to its end.
var errBody = errors.New("read upload")

// Put stores size bytes of body as a blob and reports whether it is new. When
// Put returns nil the blob is durable, unless the store is unsynced. After an
// error nothing of the upload remains.
func (s *Store) Put(p Path, body io.Reader, size int64, condition Precondition) (created bool, err error) {
	serial := s.uploads.serial.Add(1)
	i := int(serial % int64(len(s.uploads.dirs)))
	temp := strconv.FormatInt(serial, 36)
	from := fd(s.uploads.dirs[i].Load())
	f, err := from.create(temp)
	if errors.Is(err, fs.ErrNotExist) { // an operator has removed the directory
		if from, err = s.openUploadDir(i, from); err == nil {
			f, err = from.create(temp)
		}
	}
	if err != nil {
		return false, fmt.Errorf("create upload: %w", err)
	}
	defer func() {
		if err != nil {
			_ = from.remove(temp, 0) // otherwise the next start removes it
		}
	}()
	if err := s.write(from, temp, f, body, size); err != nil {
		return false, err
	}

	unlock := s.lockPath(p)
	created, err = s.commit(from, temp, p, size, condition)
	if err == nil {
		s.recordAccess(p) // replaces an older pending access time
	}
	unlock()
	s.evictToFit()
	return created, err
}

// write writes the body to a new file and closes the file.
func (s *Store) write(from fd, temp string, f fd, body io.Reader, size int64) error {
	defer f.close()
	buffer := s.uploads.buffers.Get().(*uploadBuffer)
	defer s.uploads.buffers.Put(buffer)
	for left := size; left > 0; {
		part := buffer[:min(left, int64(len(buffer)))]
		if _, err := io.ReadFull(body, part); err != nil {
			return fmt.Errorf("%w: %w", errBody, err)
		}
		if err := f.write(part); err != nil {
			return fmt.Errorf("write upload: %w", err)
		}
		left -= int64(len(part))
	}
	if err := from.setTimes(temp, s.uniqueTime()); err != nil {
		return fmt.Errorf("set upload time: %w", err)
	}
	if err := s.sync(f); err != nil {
		return fmt.Errorf("sync upload: %w", err)
	}
	return nil
}

// commit moves an upload to its path. The caller holds the lock of the path.
func (s *Store) commit(from fd, temp string, p Path, size int64, condition Precondition) (created bool, err error) {
	shard, file := p.split()
	dir, err := s.makeShard(shard)
	if err != nil {
		return false, err
	}
	defer dir.close()
	old, err := dir.lstat(file)
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return false, fmt.Errorf("look up blob: %w", err)
	case old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return false, errPathOccupied
	}
	var tag string
	created = !isRegular(old) // a link or a special file is not a blob; it is replaced
	if created {
		old.Size = 0
	} else {
		tag = etag(old)
	}
	if condition != nil {
		if err := condition(tag, modified(old)); err != nil {
			return false, err
		}
	}
	if err := s.change(p, func() error { return from.rename(temp, dir, file) }); err != nil {
		return false, fmt.Errorf("rename upload: %w", err)
	}
	s.bytes.Add(size - old.Size)
	if created {
		s.objects.Add(1)
	}
	if err := s.sync(dir); err != nil {
		// A blob that a crash may lose must not be served.
		return false, errors.Join(fmt.Errorf("sync upload: %w", err), s.remove(dir, p, size))
	}
	return created, nil
}

// uniqueTime returns the current time, or a later one if another upload has got it, because
// ETags contain the time.
func (s *Store) uniqueTime() time.Time {
	for {
		last := s.uploads.lastTime.Load()
		now := max(time.Now().UnixNano(), last+1)
		if s.uploads.lastTime.CompareAndSwap(last, now) {
			return time.Unix(0, now)
		}
	}
}
