package media

import "golang.org/x/sys/unix"

// renameNew moves a file. It fails if the destination exists.
func (d fd) renameNew(name string, to fd, newName string) error {
	return retryEINTR(func() error { return unix.Renameat2(int(d), name, int(to), newName, unix.RENAME_NOREPLACE) })
}
