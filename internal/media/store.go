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

// Store keeps objects as files, <root>/<shard>/<name>.<encoding>, and nothing
// about them anywhere else: what a file system says is true, also after a crash
// or after somebody has copied files in. It reaches files only below its root
// (os.Root resolves every part itself), and only regular ones are objects.
//
// Readers and writers need no agreement: a file is complete when it gets its
// name and never changes afterwards; a reader of one that was replaced or removed
// keeps what it opened.
type Store struct {
	root     *os.Root
	file     *os.File // the root once more
	top      opened   // what that has opened
	lock     *os.File
	maxBytes int64
	unsynced bool
	change   func(p Path, change func() error) error
	log      *slog.Logger

	shards  shards
	uploads uploads
	stripes [256]sync.Mutex // of paths: their changes come one after another
	uses    uses
	next    queue

	counting       sync.RWMutex // held for writing while all is counted
	bytes, objects atomic.Int64
	evicted        atomic.Uint64
}

// StoreOptions say where objects are kept, and how many.
type StoreOptions struct {
	Root     string
	MaxBytes int64 // of all objects; 0: no cap
	Unsynced bool  // leaves it to the system when changes reach the disk
	Log      *slog.Logger
	// Change, if set, is given each step that replaces or removes an object, and
	// carries it out. It is where a cache of objects learns of it.
	Change func(p Path, change func() error) error
}

// ErrNoObject says that there is no object of a path.
var ErrNoObject = errors.New("no such object")

// OpenStore makes the root if need be, removes what uploads of an earlier process
// left unfinished, and counts what is there. A root has one store at a time.
func OpenStore(o StoreOptions) (_ *Store, err error) {
	if err := os.MkdirAll(o.Root, 0o750); err != nil {
		return nil, fmt.Errorf("make the media root: %w", err)
	}
	s := &Store{maxBytes: o.MaxBytes, unsynced: o.Unsynced, change: o.Change, log: o.Log, shards: shards{byName: map[string]*shard{}}, uses: uses{pending: map[Path]time.Time{}}}
	if s.change == nil {
		s.change = func(_ Path, change func() error) error { return change() }
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.root, err = os.OpenRoot(o.Root); err != nil {
		return nil, fmt.Errorf("open the media root: %w", err)
	}
	if s.file, err = s.root.Open("."); err != nil {
		return nil, fmt.Errorf("open the media root: %w", err)
	}
	s.top = opened(s.file.Fd())
	if s.lock, err = s.root.OpenFile(".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock the media root: %w", err)
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("the media root %s is in use by another media service: stop that, or give this one a MEDIA_ROOT of its own (%w)", o.Root, err)
	}
	if err := s.beginUploads(); err != nil {
		return nil, err
	}
	if err := s.survey(); err != nil {
		return nil, err
	}
	s.makeRoom()
	return s, nil
}

// Close writes down what was used last, and lets go of the root.
func (s *Store) Close() {
	if s.root == nil {
		return
	}
	s.uses.flush(s.root)
	s.shards.close()
	_ = s.file.Close()
	s.endUploads()
	_ = s.lock.Close()
	_ = s.root.Close()
}

// Object is an opened object.
type Object struct {
	*os.File
	Size     int64
	Modified time.Time
	ETag     string // strong: no two bodies of a path share one
}

// Open returns an object to read and to close, or ErrNoObject.
func (s *Store) Open(p Path) (*Object, error) {
	shard, file := p.split()
	dir, err := s.shard(shard)
	if err != nil {
		return nil, absent(err)
	}
	defer dir.done()
	info, err := dir.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return nil, absent(err)
	}
	// What is no regular file any more must not be waited for, as a pipe would be.
	f, err := dir.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, absent(err)
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, absent(err)
	}
	s.used(p)
	return &Object{f, info.Size(), info.ModTime(), etag(info)}, nil
}

// absent tells a missing object from a store that does not work. Whatever leads
// out of the root or in circles is nothing of ours: os.Root says so without an
// error number.
func absent(err error) error {
	var number syscall.Errno
	switch {
	case err == nil, !errors.As(err, &number),
		errors.Is(err, fs.ErrNotExist), number == syscall.ENOTDIR, number == syscall.ELOOP, number == syscall.ENAMETOOLONG:
		return ErrNoObject
	}
	return fmt.Errorf("open an object: %w", err)
}

// etag needs no look at the bytes: every upload gets a time of its own.
func etag(info fs.FileInfo) string {
	return `"` + strconv.FormatInt(info.ModTime().UnixNano(), 36) + "-" + strconv.FormatInt(info.Size(), 36) + `"`
}

// Condition may refuse a change by what is there, nil where nothing is. It is
// asked while nobody else can change that. A nil one refuses nothing.
type Condition func(current fs.FileInfo) error

func (c Condition) of(current fs.FileInfo) error {
	if c == nil {
		return nil
	}
	return c(current)
}

// Delete removes an object for good. Allow may refuse by what is there.
func (s *Store) Delete(p Path, allow Condition) error {
	shard, file := p.split()
	dir, err := s.shard(shard)
	if err != nil {
		return absent(err)
	}
	defer dir.done()
	defer s.lockPath(p)()
	info, err := dir.Lstat(file)
	if err != nil || !info.Mode().IsRegular() {
		return absent(err)
	}
	if err := allow.of(info); err != nil {
		return err
	}
	if err := s.remove(dir, p, info.Size()); err != nil {
		return err
	}
	if err := s.sync(dir); err != nil {
		return fmt.Errorf("make a removal durable: %w", err)
	}
	return nil
}

// remove takes one file away. Its path must be locked.
func (s *Store) remove(dir *shard, p Path, size int64) error {
	_, file := p.split()
	if err := s.change(p, func() error { return dir.Remove(file) }); err != nil {
		return absent(err)
	}
	s.bytes.Add(-size)
	s.objects.Add(-1)
	return nil
}

// lockPath makes the caller the only one who changes an object, until unlock.
func (s *Store) lockPath(p Path) (unlock func()) {
	stripe := &s.stripes[crc32.ChecksumIEEE([]byte(p))%uint32(len(s.stripes))]
	s.counting.RLock()
	stripe.Lock()
	return func() {
		stripe.Unlock()
		s.counting.RUnlock()
	}
}

// List returns objects after a path, in order of path, limit at the most.
func (s *Store) List(after string, limit int) ([]speech.BlobInfo, error) {
	from, _, _ := strings.Cut(after, "/")
	var blobs []speech.BlobInfo
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
		slices.SortFunc(infos, func(a, b fs.FileInfo) int { return cmp.Compare(a.Name(), b.Name()) })
		for _, info := range infos {
			path := shard + "/" + info.Name()
			if _, ours := ParsePath(path); !ours || path <= after {
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

// shardNames lists the folders that may hold objects, in the order of the paths in
// them.
func (s *Store) shardNames() ([]string, error) {
	entries, err := readFolder(s.root)
	if err != nil {
		return nil, err
	}
	var shards []string
	for _, e := range entries {
		if e.IsDir() && plain(e.Name()) {
			shards = append(shards, e.Name())
		}
	}
	slices.SortFunc(shards, func(a, b string) int { return cmp.Compare(a+"/", b+"/") })
	return shards, nil
}

// files lists the regular files of a shard.
func (s *Store) files(name string) (infos []fs.FileInfo, err error) {
	dir, err := s.shard(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // removed meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("look at the media root: %w", err)
	}
	defer dir.done()
	entries, err := readFolder(dir.Root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := dir.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("look at the media root: %w", err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func readFolder(root *os.Root) ([]fs.DirEntry, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("look at the media root: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("look at the media root: %w", err)
	}
	return entries, nil
}
