package media

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// opened is the descriptor of a folder.
//
// An upload is a handful of system calls, each on one name in an opened folder.
// os.Root and os.File would double them: they look at a name before they use it,
// and try to poll what cannot be. A name here is one that ParsePath took or one
// of our own, so it has no slash and is not "..", and no call follows a link: what
// is done stays in the folder.
type opened int

// writing is the descriptor of a file that one goroutine writes to.
type writing int

// identity is what a name stands for.
type identity unix.Stat_t

func (i identity) isFolder() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

func (i identity) same(j identity) bool { return i.Dev == j.Dev && i.Ino == j.Ino }

func (o opened) lstat(name string) (identity, error) {
	var info unix.Stat_t
	err := unbroken(func() error { return unix.Fstatat(int(o), name, &info, unix.AT_SYMLINK_NOFOLLOW) })
	return identity(info), err
}

// makeFolder opens a folder in this one, and makes it if need be.
func (o opened) makeFolder(name string) (folder opened, err error) {
	err = unbroken(func() error { return unix.Mkdirat(int(o), name, 0o750) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	err = unbroken(func() error {
		fd, err := unix.Openat(int(o), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		folder = opened(fd)
		return err
	})
	return folder, err
}

// create makes a new file to write to.
func (o opened) create(name string) (f writing, err error) {
	err = unbroken(func() error {
		fd, err := unix.Openat(int(o), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
		f = writing(fd)
		return err
	})
	return f, err
}

// date sets when a file was changed and used last.
func (o opened) date(name string, at time.Time) error {
	t := unix.NsecToTimespec(at.UnixNano())
	return unbroken(func() error {
		return unix.UtimesNanoAt(int(o), name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// move gives a file its place, and replaces whatever is there but a folder.
func (o opened) move(name string, to opened, place string) error {
	return unbroken(func() error { return unix.Renameat(int(o), name, int(to), place) })
}

// discard removes a file, if it is there.
func (o opened) discard(name string) {
	_ = unbroken(func() error { return unix.Unlinkat(int(o), name, 0) }) // or the next start does
}

// removeEmpty removes a folder, if it is one and nothing is in it.
func (o opened) removeEmpty(name string) {
	_ = unbroken(func() error { return unix.Unlinkat(int(o), name, unix.AT_REMOVEDIR) })
}

func (f writing) write(p []byte) error {
	for len(p) > 0 {
		if err := unbroken(func() error {
			n, err := unix.Write(int(f), p)
			p = p[max(n, 0):]
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (o opened) close()  { _ = unix.Close(int(o)) }
func (f writing) close() { _ = unix.Close(int(f)) }

func (o opened) sync() error  { return fsync(int(o)) }
func (f writing) sync() error { return fsync(int(f)) }

func fsync(fd int) error { return unbroken(func() error { return unix.Fsync(fd) }) }

// unbroken repeats a call that a signal interrupts, as some file systems let it.
func unbroken(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
