package media

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"telapi/internal/fault"
	"telapi/internal/filelock"
	"telapi/internal/speech"
)

// Store stores blobs as files, <root>/<shard>/<name>.<encoding>. It has no other
// state, so it is consistent after a crash and after an operator has copied files
// into the root. Only regular files are blobs, and no file outside the root is
// accessed.
//
// Readers and writers need no coordination. A file is complete when it gets its
// name and never changes afterwards; readers of a replaced or deleted file keep
// the content they opened.
type Store struct {
	root     *os.Root
	rootFile *os.File // owns rootFD
	rootFD   fd
	lock     *os.File // prevents a second store with the same root
	maxBytes int64
	unsynced bool
	change   func(p Path, step func() error) error // see OpenStore
	log      *slog.Logger

	dirsMu      sync.RWMutex // write-locked while directories are created
	uploads     uploads
	stripes     [256]sync.Mutex // serialize the changes of a path
	accessTimes accessTimes
	queue       evictionQueue

	scanning       sync.RWMutex // write-locked during a scan
	bytes, objects atomic.Int64
	evicted        atomic.Uint64
}

var errNotFound = fault.New(fault.NotFound, "Blob not found.")

// OpenStore opens the root of a service and creates it if it is missing. It removes
// unfinished uploads of an earlier process. A root can be open only once. To replace
// or delete a blob, the store passes the step that does it to change, which runs the
// step and can invalidate the path in a cache.
func OpenStore(o Options, change func(p Path, step func() error) error) (_ *Store, err error) {
	if err := os.MkdirAll(o.Root, 0o700); err != nil {
		return nil, fmt.Errorf("create media root: %w", err)
	}
	s := &Store{maxBytes: o.MaxBytes, unsynced: o.Unsynced, change: change, log: o.Log, accessTimes: accessTimes{pending: map[Path]time.Time{}}}
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
	s.rootFD = fd(s.rootFile.Fd())
	if s.lock, err = s.root.OpenFile(".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock media root: %w", err)
	}
	if err := filelock.TryLock(s.lock); err != nil {
		return nil, fmt.Errorf("media root %s is in use by another media service: stop it or set another MEDIA_ROOT (%w)", o.Root, err)
	}
	if err := s.openUploads(); err != nil {
		return nil, err
	}
	if err := s.sync(s.rootFD); err != nil { // directories that an earlier process created
		return nil, fmt.Errorf("sync media root: %w", err)
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
	s.accessTimes.flush(s.root)
	_ = s.rootFile.Close()
	for i := range s.uploads.dirs {
		if dir := fd(s.uploads.dirs[i].Load()); dir > 0 {
			dir.close()
		}
	}
	filelock.Close(s.lock)
	_ = s.root.Close()
}

// Blob is an open blob.
type Blob struct {
	*os.File
	Size     int64
	Modified time.Time
	ETag     string // strong: it changes with every upload
}

// Open opens a blob for reading, or returns NOT_FOUND.
func (s *Store) Open(p Path) (*Blob, error) {
	shard, file := p.split()
	dir, err := s.rootFD.openDir(shard)
	if err != nil {
		return nil, notFoundOr(err)
	}
	defer dir.close()
	f, err := dir.open(file, unix.O_RDONLY|unix.O_NONBLOCK, 0) // O_NONBLOCK: it may be a pipe
	if err != nil {
		return nil, notFoundOr(err)
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(f), &info); err != nil || !isRegular(info) {
		f.close()
		return nil, notFoundOr(err)
	}
	s.recordAccess(p)
	return &Blob{os.NewFile(uintptr(f), string(p)), info.Size, modified(info), etag(info)}, nil
}

// notFoundOr returns errNotFound if err is nil or means that a path has no blob.
func notFoundOr(err error) error {
	switch code, _ := errors.AsType[unix.Errno](err); code {
	case 0, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.ENXIO:
		return errNotFound
	}
	return fmt.Errorf("open blob: %w", err)
}

// etag uses the modification time, which is unique for each upload.
func etag(info unix.Stat_t) string {
	return `"` + strconv.FormatInt(info.Mtim.Nano(), 36) + "-" + strconv.FormatInt(info.Size, 36) + `"`
}

// Precondition decides whether the current blob may be changed. It returns an error
// to prevent that. The ETag is empty if there is no blob. The blob cannot change
// during the call. A nil Precondition allows every change.
type Precondition func(etag string, modified time.Time) error

// Delete deletes a blob durably, or returns NOT_FOUND.
func (s *Store) Delete(p Path, condition Precondition) error {
	return s.deleteIf(p, s.sync, func(info unix.Stat_t) error {
		if condition == nil {
			return nil
		}
		return condition(etag(info), modified(info))
	})
}

// deleteIf deletes a blob if allow returns nil. It returns errNotFound if there
// is none.
func (s *Store) deleteIf(p Path, sync func(fd) error, allow func(unix.Stat_t) error) error {
	shard, file := p.split()
	dir, err := s.rootFD.openDir(shard)
	if err != nil {
		return notFoundOr(err)
	}
	defer dir.close()
	defer s.lockPath(p)()
	info, err := dir.lstat(file)
	if err != nil || !isRegular(info) {
		return notFoundOr(err)
	}
	if err := allow(info); err != nil {
		return err
	}
	if err := s.remove(dir, p, info.Size); err != nil {
		return err
	}
	if err := sync(dir); err != nil {
		return fmt.Errorf("sync deletion: %w", err)
	}
	return nil
}

// remove removes a file. The caller holds the lock of the path.
func (s *Store) remove(dir fd, p Path, size int64) error {
	_, file := p.split()
	if err := s.change(p, func() error { return dir.remove(file, 0) }); err != nil {
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
	err = s.walk(after, func(p Path, info unix.Stat_t) bool {
		blobs = append(blobs, speech.BlobInfo{Path: string(p), Bytes: info.Size, ModifiedAt: modified(info).UTC()})
		return len(blobs) < limit
	})
	return blobs, err
}

// walk visits blobs with a path greater than after, in order of path, until visit
// returns false. It skips blobs that are removed at the same time.
func (s *Store) walk(after string, visit func(Path, unix.Stat_t) bool) error {
	firstShard, _, _ := strings.Cut(after, "/")
	shards, err := s.rootFD.list(".")
	if err != nil {
		return fmt.Errorf("read media root: %w", err)
	}
	slices.SortFunc(shards, func(a, b string) int { return cmp.Compare(a+"/", b+"/") })
	for _, shard := range shards {
		if !isName(shard) || shard+"/" < firstShard+"/" {
			continue
		}
		more, err := s.walkShard(shard, after, visit)
		if err != nil && !errors.Is(notFoundOr(err), errNotFound) {
			return fmt.Errorf("read shard: %w", err)
		}
		if !more {
			break
		}
	}
	return nil
}

func (s *Store) walkShard(shard, after string, visit func(Path, unix.Stat_t) bool) (more bool, err error) {
	files, err := s.rootFD.list(shard)
	if err != nil {
		return true, err
	}
	dir, err := s.rootFD.openDir(shard)
	if err != nil {
		return true, err
	}
	defer dir.close()
	for _, file := range files {
		p, ok := ParsePath(shard + "/" + file)
		if !ok || string(p) <= after {
			continue
		}
		info, err := dir.lstat(file)
		switch {
		case errors.Is(err, unix.ENOENT), err == nil && !isRegular(info):
			continue
		case err != nil:
			return false, err
		case !visit(p, info):
			return false, nil
		}
	}
	return true, nil
}
