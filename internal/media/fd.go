package media

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// dirFD and fileFD are raw descriptors. An upload is a handful of system calls on
// names in an open directory; os.Root and os.File would double their number,
// because they check a name before they use it and try to poll regular files.
//
// Names come from ParsePath or from the store itself. They contain no slash and
// are not "..", and no call follows symbolic links, so no call leaves the
// directory.
type (
	dirFD  int
	fileFD int // used by one goroutine
)

// fileID identifies a file or directory independently of its name.
type fileID unix.Stat_t

func (i fileID) isDir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

func (i fileID) same(j fileID) bool { return i.Dev == j.Dev && i.Ino == j.Ino }

func (d dirFD) lstat(name string) (fileID, error) {
	var info unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstatat(int(d), name, &info, unix.AT_SYMLINK_NOFOLLOW) })
	return fileID(info), err
}

// makeDir opens a subdirectory and creates it if it is missing.
func (d dirFD) makeDir(name string) (dirFD, error) {
	err := retryEINTR(func() error { return unix.Mkdirat(int(d), name, 0o750) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return dirFD(fd), err
}

// create creates a file for writing. It fails if the name exists.
func (d dirFD) create(name string) (fileFD, error) {
	fd, err := d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o640)
	return fileFD(fd), err
}

func (d dirFD) open(name string, flags int, mode uint32) (fd int, err error) {
	err = retryEINTR(func() (err error) {
		fd, err = unix.Openat(int(d), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// setTimes sets the modification and access times of a file.
func (d dirFD) setTimes(name string, at time.Time) error {
	t := unix.NsecToTimespec(at.UnixNano())
	return retryEINTR(func() error {
		return unix.UtimesNanoAt(int(d), name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// rename moves a file and replaces the destination unless that is a directory.
func (d dirFD) rename(name string, to dirFD, newName string) error {
	return retryEINTR(func() error { return unix.Renameat(int(d), name, int(to), newName) })
}

// remove removes a file. The next start removes files for which that failed.
func (d dirFD) remove(name string) {
	_ = retryEINTR(func() error { return unix.Unlinkat(int(d), name, 0) })
}

// removeEmptyDir removes a directory if it is empty.
func (d dirFD) removeEmptyDir(name string) {
	_ = retryEINTR(func() error { return unix.Unlinkat(int(d), name, unix.AT_REMOVEDIR) })
}

func (f fileFD) write(p []byte) error {
	for len(p) > 0 {
		if err := retryEINTR(func() error {
			n, err := unix.Write(int(f), p)
			p = p[max(n, 0):]
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (d dirFD) close()  { _ = unix.Close(int(d)) }
func (f fileFD) close() { _ = unix.Close(int(f)) }

// fsync makes a file, or the names in a directory, durable.
func fsync[FD dirFD | fileFD](fd FD) error {
	return retryEINTR(func() error { return unix.Fsync(int(fd)) })
}

// retryEINTR repeats a call that a signal interrupts, as some file systems allow.
func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
