package media

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// accessTime returns when a file was last used.
func accessTime(info fs.FileInfo) time.Time {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime()
	}
	return time.Unix(stat.Atim.Unix())
}

// renameNew moves a file. It fails if the destination exists.
func (d dirFD) renameNew(name string, to dirFD, newName string) error {
	return retryEINTR(func() error { return unix.Renameat2(int(d), name, int(to), newName, unix.RENAME_NOREPLACE) })
}
