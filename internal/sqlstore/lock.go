package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"telapi/internal/sleep"
)

// LockServer prevents a second server from using the same SQLite file until
// release is called or the process ends. Commands do not need the lock. On
// PostgreSQL, LockServer does nothing.
func (s *Store) LockServer() (release func(), err error) {
	if s.engine.dataDir == "" {
		return func() {}, nil
	}
	path := filepath.Join(s.engine.dataDir, "server.lock")
	file, err := lockFile(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid, _ := os.ReadFile(path)
		return nil, fmt.Errorf("another telapi server (process %s) uses the data directory %s: stop it, set a different DATA_DIR, "+
			"or set DATABASE_URL and REDIS_URL to run several servers", bytes.TrimSpace(pid), s.engine.dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(file, os.Getpid()) // only for the error message above
	}
	return func() { _ = file.Close() }, nil
}

// lockFile takes an exclusive lock, which the kernel releases when the file is
// closed or the process ends. The file is never removed: that would allow two
// owners. It returns EWOULDBLOCK if the lock is taken.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// waitForLock is like lockFile, but waits for the lock until ctx ends.
func waitForLock(ctx context.Context, path string) (*os.File, error) {
	for {
		file, err := lockFile(path)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return file, err
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
