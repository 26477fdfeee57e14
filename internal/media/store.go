package media

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"telapi/internal/speech"
)

// Store keeps blobs as files, <root>/<shard>/<name>.<encoding>. It has no other
// state: the file system is right, also after a crash or after files were copied
// in. It accesses only files below its root, and only regular files are blobs.
//
// Readers and writers need no coordination. A file is complete when it gets its
// name and never changes afterwards; readers of a replaced or deleted file keep
// the content they opened.
type Store struct {
	root     *os.Root
	rootFile *os.File // owns rootFD
	rootFD   dirFD
	lock     *os.File
	maxBytes int64
	unsynced bool
	change   func(p Path, change func() error) error
	log      *slog.Logger

	shards  shardCache
	uploads uploads
	stripes [256]sync.Mutex // serialize the changes of a path
	uses    uses
	queue   evictionQueue

	scanning       sync.RWMutex // held for writing during a scan
	bytes, objects atomic.Int64
	evicted        atomic.Uint64
}

// StoreOptions configure a Store.
type StoreOptions struct {
	Root     string
	MaxBytes int64 // of all blobs; 0: unlimited
	Unsynced bool  // don't wait until changes are on disk
	Log      *slog.Logger
	// Change, if set, runs each step that replaces or deletes a blob. A cache
	// uses it to invalidate the path.
	Change func(p Path, change func() error) error
}

// ErrNotFound is returned when a path has no blob.
var ErrNotFound = errors.New("blob not found")

// OpenStore opens a root and creates it if it is missing. It removes unfinished
// uploads of an earlier process. A root can be open only once.
func OpenStore(o StoreOptions) (_ *Store, err error) {
	if err := os.MkdirAll(o.Root, 0o750); err != nil {
		return nil, fmt.Errorf("create media root: %w", err)
	}
	s := &Store{maxBytes: o.MaxBytes, unsynced: o.Unsynced, change: o.Change, log: o.Log, shards: shardCache{byName: map[string]*shard{}}, uses: uses{pending: map[Path]time.Time{}}}
	if s.change == nil {
		s.change = func(_ Path, change func() error) error { return change() }
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.root, err = os.OpenRoot(o.Root); err != nil {
		return nil, fmt.Errorf("open media root: %w", err)
	}
	if s.rootFile, err = s.root.Open("."); err != nil {
		return nil, fmt.Errorf("open media root: %w", err)
	}
	s.rootFD = dirFD(s.rootFile.Fd())
	if s.lock, err = s.root.OpenFile(".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock media root: %w", err)
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("media root %s is in use by another media service: stop it or set another MEDIA_ROOT (%w)", o.Root, err)
	}
	if err := s.openUploads(); err != nil {
		return nil, err
	}
	if err := s.scan(); err != nil {
		return nil, err
	}
	s.evictToFit()
	return s, nil
}

// Close saves the access times and closes the root.
func (s *Store) Close() {
	if s.root == nil {
		return
	}
	s.uses.flush(s.root)
	s.shards.close()
	_ = s.rootFile.Close()
	s.closeUploads()
	_ = s.lock.Close()
	_ = s.root.Close()
}

// Blob is an open blob.
type Blob struct {
	*os.File
	Size     int64
	Modified time.Time
	ETag     string // strong: it changes with every upload
}

// Open opens a blob for reading, or returns ErrNotFound.
func (s *Store) Open(p Path) (*Blob, error) {
	shard, file := p.split()
	dir, err := s.shard(shard)
	if err != nil {
		return nil, notFoundOr(err)
	}
	defer dir.release()
	info, err := dir.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return nil, notFoundOr(err)
	}
	// O_NONBLOCK: the file may have been replaced by a pipe meanwhile.
	f, err := dir.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, notFoundOr(err)
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, notFoundOr(err)
	}
	s.used(p)
	return &Blob{f, info.Size(), info.ModTime(), etag(info)}, nil
}

// notFoundOr returns ErrNotFound if err is nil or means that a path has no blob.
// That includes paths that leave the root or are circular, for which os.Root
// returns an error without a number.
func notFoundOr(err error) error {
	var number syscall.Errno
	switch {
	case err == nil, !errors.As(err, &number),
		errors.Is(err, fs.ErrNotExist), number == syscall.ENOTDIR, number == syscall.ELOOP, number == syscall.ENAMETOOLONG:
		return ErrNotFound
	}
	return fmt.Errorf("open blob: %w", err)
}

// etag uses the modification time, which is unique for each upload.
func etag(info fs.FileInfo) string {
	return `"` + strconv.FormatInt(info.ModTime().UnixNano(), 36) + "-" + strconv.FormatInt(info.Size(), 36) + `"`
}

// Precondition returns an error to prevent a change of the current blob, which
// is nil if there is none. The blob cannot change during the call. A nil
// Precondition allows every change.
type Precondition func(current fs.FileInfo) error

func (c Precondition) check(current fs.FileInfo) error {
	if c == nil {
		return nil
	}
	return c(current)
}

// Delete deletes a blob durably, or returns ErrNotFound.
func (s *Store) Delete(p Path, condition Precondition) error {
	shard, file := p.split()
	dir, err := s.shard(shard)
	if err != nil {
		return notFoundOr(err)
	}
	defer dir.release()
	defer s.lockPath(p)()
	info, err := dir.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return notFoundOr(err)
	}
	if err := condition.check(info); err != nil {
		return err
	}
	if err := s.remove(dir, p, info.Size()); err != nil {
		return err
	}
	if err := s.syncDir(dir.dirFD); err != nil {
		return fmt.Errorf("sync deletion: %w", err)
	}
	return nil
}

// remove removes a file. The caller holds the lock of the path.
func (s *Store) remove(dir *shard, p Path, size int64) error {
	_, file := p.split()
	if err := s.change(p, func() error { return dir.Remove(file) }); err != nil {
		return notFoundOr(err)
	}
	s.bytes.Add(-size)
	s.objects.Add(-1)
	return nil
}

// lockPath excludes other changes of a blob until unlock.
func (s *Store) lockPath(p Path) (unlock func()) {
	stripe := &s.stripes[crc32.ChecksumIEEE([]byte(p))%uint32(len(s.stripes))]
	s.scanning.RLock()
	stripe.Lock()
	return func() {
		stripe.Unlock()
		s.scanning.RUnlock()
	}
}

// List returns up to limit blobs with a path greater than after, in order of
// path.
func (s *Store) List(after string, limit int) (blobs []speech.BlobInfo, err error) {
	from, _, _ := strings.Cut(after, "/")
	shards, err := s.shardNames()
	if err != nil {
		return nil, err
	}
	for _, shard := range shards {
		if shard+"/" < from+"/" {
			continue
		}
		infos, err := s.files(shard)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			path := shard + "/" + info.Name()
			if _, ok := ParsePath(path); !ok || path <= after {
				continue
			}
			if len(blobs) == limit {
				return blobs, nil
			}
			blobs = append(blobs, speech.BlobInfo{Path: path, Bytes: info.Size(), ModifiedAt: info.ModTime().UTC()})
		}
	}
	return blobs, nil
}

// shardNames lists the directories that may contain blobs, in order of path.
func (s *Store) shardNames() (shards []string, err error) {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("read media root: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && isName(e.Name()) {
			shards = append(shards, e.Name())
		}
	}
	slices.SortFunc(shards, func(a, b string) int { return cmp.Compare(a+"/", b+"/") })
	return shards, nil
}

// files lists the regular files of a shard in order of name. It skips those that
// are removed meanwhile.
func (s *Store) files(name string) (infos []fs.FileInfo, err error) {
	dir, err := s.shard(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read shard: %w", err)
	}
	defer dir.release()
	entries, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("read shard: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := dir.Lstat(e.Name())
		if err == nil {
			infos = append(infos, info)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read shard: %w", err)
		}
	}
	return infos, nil
}
