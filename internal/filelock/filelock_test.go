package filelock

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"telapi/test/testkit"
)

// A child process that is being started has all open files until it runs its program.
func TestCloseUnlocksFileThatAChildStillHas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		testkit.Must(t, err)
		return file
	}
	first, second := open(), open()
	testkit.Must(t, TryLock(first))
	child, err := syscall.Dup(int(first.Fd()))
	testkit.Must(t, err)
	defer syscall.Close(child)
	testkit.WantError(t, "lock of a locked file", TryLock(second), syscall.EWOULDBLOCK)
	Close(first)
	testkit.NoError(t, "lock after Close", TryLock(second))
	Close(second)
}
