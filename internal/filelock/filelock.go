// Package filelock locks files, so that one process at a time uses the data beside them.
// A locked file must not be removed, because two processes could then lock different files.
package filelock

import (
	"os"
	"syscall"
)

// TryLock locks a file until Close, or until the process ends. It returns EWOULDBLOCK if the
// file is locked already, also by this process.
func TryLock(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// Close unlocks and closes a file. To close it is not enough: a child process that is just
// being started has the file too, and the lock with it.
func Close(file *os.File) {
	_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	_ = file.Close()
}
