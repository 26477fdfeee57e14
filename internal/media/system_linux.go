package media

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// accessed is when a file was used last.
func accessed(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime()
	}
	return time.Unix(stat.Atim.Unix())
}

// moveNew is move into a place where nothing is.
func (o opened) moveNew(name string, to opened, place string) error {
	return unbroken(func() error { return unix.Renameat2(int(o), name, int(to), place, unix.RENAME_NOREPLACE) })
}
