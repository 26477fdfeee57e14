package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// LockServer keeps a second server away from the same SQLite file until release
// is called or the process ends. Short-lived commands need no lock. On
// PostgreSQL it does nothing: servers share it.
func (s *Store) LockServer() (release func(), err error) {
	if s.engine.dataDir == "" {
		return func() {}, nil
	}
	file, err := lockFile(filepath.Join(s.engine.dataDir, "server.lock"))
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("another telapi server%s uses the data folder %s: stop it, or give this one a DATA_DIR of its own, "+
			"or set DATABASE_URL and REDIS_URL so that several servers can work together", lockOwner(s.engine.dataDir), s.engine.dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteString(strconv.Itoa(os.Getpid()) + "\n") // a courtesy for the error text above
	}
	return func() { _ = file.Close() }, nil
}

func lockOwner(dataDir string) string {
	text, err := os.ReadFile(filepath.Join(dataDir, "server.lock"))
	if pid := strings.TrimSpace(string(text)); err == nil && pid != "" {
		return " (process " + pid + ")"
	}
	return ""
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
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
