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

// LockServer keeps a second server away from the same SQLite file until release
// is called or the process ends. Short-lived commands need no lock. On
// PostgreSQL it does nothing: servers share it.
func (s *Store) LockServer() (release func(), err error) {
	if s.engine.dataDir == "" {
		return func() {}, nil
	}
	path := filepath.Join(s.engine.dataDir, "server.lock")
	file, err := lockFile(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid, _ := os.ReadFile(path)
		return nil, fmt.Errorf("another telapi server (process %s) uses the data folder %s: stop it, or give this one a DATA_DIR of its own, "+
			"or set DATABASE_URL and REDIS_URL so that several servers can work together", bytes.TrimSpace(pid), s.engine.dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(file, os.Getpid()) // a courtesy for the error text above
	}
	return func() { _ = file.Close() }, nil
}

// lockFile takes an exclusive lock, which the kernel drops when the file is
// closed, however the process ends. The file itself stays: removing it would
// let two owners in. It fails with EWOULDBLOCK when another has the lock.
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

// awaitLockFile is lockFile for those who can wait.
func awaitLockFile(ctx context.Context, path string) (*os.File, error) {
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
