package media

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"telapi/internal/fault"
)

// fd is the raw descriptor of a file or directory. An upload needs a few system
// calls with names in an open directory. os.Root and os.File would need twice as
// many, because they check names before they use them and try to poll regular files.
//
// Names come from ParsePath or from the store itself. They contain no slash and
// are not "..", and no call follows symbolic links, so no call leaves the
// directory.
type fd int

func isRegular(info unix.Stat_t) bool { return info.Mode&unix.S_IFMT == unix.S_IFREG }

func modified(info unix.Stat_t) time.Time { return time.Unix(info.Mtim.Unix()) }

func accessed(info unix.Stat_t) time.Time { return time.Unix(info.Atim.Unix()) }

func (d fd) lstat(name string) (info unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstatat(int(d), name, &info, unix.AT_SYMLINK_NOFOLLOW) })
	return info, err
}

func (d fd) open(name string, flags int, mode uint32) (opened fd, err error) {
	err = retryEINTR(func() error {
		n, err := unix.Openat(int(d), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		opened = fd(n)
		return err
	})
	return opened, err
}

func (d fd) openDir(name string) (fd, error) { return d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0) }

// makeDir opens a subdirectory and creates it if it is missing.
func (d fd) makeDir(name string) (fd, error) {
	err := retryEINTR(func() error { return unix.Mkdirat(int(d), name, 0o700) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	return d.openDir(name)
}

// create creates a file for writing. It fails if the name exists.
func (d fd) create(name string) (fd, error) {
	return d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
}

// list returns the sorted names in a subdirectory.
func (d fd) list(name string) ([]string, error) {
	dir, err := d.openDir(name)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dir), name)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (d fd) setTimes(name string, at time.Time) error {
	t := unix.NsecToTimespec(at.UnixNano())
	return retryEINTR(func() error {
		return unix.UtimesNanoAt(int(d), name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// rename moves a file and replaces the destination unless that is a directory.
func (d fd) rename(name string, to fd, newName string) error {
	return retryEINTR(func() error { return unix.Renameat(int(d), name, int(to), newName) })
}

// remove removes a file or, with AT_REMOVEDIR, an empty directory.
func (d fd) remove(name string, flags int) error {
	return retryEINTR(func() error { return unix.Unlinkat(int(d), name, flags) })
}

func (d fd) write(p []byte) error {
	for len(p) > 0 {
		if err := retryEINTR(func() error {
			n, err := unix.Write(int(d), p)
			p = p[max(n, 0):]
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// sync makes a file, or the names in a directory, durable.
func (d fd) sync() error { return retryEINTR(func() error { return unix.Fsync(int(d)) }) }

func (d fd) close() { _ = unix.Close(int(d)) }

// retryEINTR repeats a call that was interrupted by a signal, which happens on some
// file systems.
func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errPathOccupied is returned when a file or directory that the store did not
// create has the path of a blob or shard.
var errPathOccupied = fault.New(fault.PathOccupied,
	"The path is occupied by a link, a directory or another file. Nothing was stored. Remove it from the media root.")

// makeShard opens the directory of a shard, and creates it durably if it is
// missing.
func (s *Store) makeShard(name string) (fd, error) {
	s.dirsMu.RLock() // wait until a directory that is being created is durable
	dir, err := s.rootFD.openDir(name)
	s.dirsMu.RUnlock()
	if errors.Is(err, fs.ErrNotExist) {
		s.dirsMu.Lock()
		defer s.dirsMu.Unlock()
		if dir, err = s.rootFD.makeDir(name); err == nil {
			if err = s.sync(s.rootFD); err != nil {
				dir.close()
				_ = s.rootFD.remove(name, unix.AT_REMOVEDIR)
			}
		}
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return 0, errPathOccupied
	case err != nil:
		return 0, fmt.Errorf("create shard: %w", err)
	}
	return dir, nil
}

// sync makes a file or directory durable, unless the store is unsynced.
func (s *Store) sync(d fd) error {
	if s.unsynced {
		return nil
	}
	return d.sync()
}
