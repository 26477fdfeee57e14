package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"

	"telapi/internal/background"
	"telapi/internal/filelock"
)

const (
	sqliteFile = "telapi.db"

	// sqliteReaders is the number of connections that read.
	sqliteReaders = 8

	// sqliteBusyTimeout is how long a statement waits for a lock of another
	// process, such as the command line next to a server. It is shorter than
	// statementTimeout.
	sqliteBusyTimeout = 5 * time.Second
)

// Exists reports whether dataDir contains a database.
func Exists(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, sqliteFile))
	return err == nil
}

// openSQLite opens one connection for writes and a pool of connections for
// reads. SQLite allows one writer at a time. If several connections wrote, they
// would poll for its lock, and some would fail with SQLITE_BUSY. Instead, writers of
// this process wait for the one connection until their context ends.
func openSQLite(dataDir string, busyTimeout time.Duration) (*Store, error) {
	if dataDir == "" {
		return nil, errors.New("DATA_DIR is empty: set it to a directory, or set DATABASE_URL")
	}
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, fmt.Errorf("resolve DATA_DIR: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create DATA_DIR: %w", err)
	}
	path := filepath.Join(dir, sqliteFile)
	pragmas := []string{
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)", // readers and the writer do not block each other
		"synchronous(FULL)", // a commit survives a power failure: a revoked key stays revoked
		"foreign_keys(ON)",
		"secure_delete(ON)", // deleted rows are overwritten with zeros
	}
	// Transactions lock the database when they begin (BEGIN IMMEDIATE). A
	// transaction that locks it later, at its first write, can fail immediately.
	write, err := sqlitePool(path, 1, url.Values{"_pragma": pragmas, "_txlock": {"immediate"}})
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, sqliteReaders, url.Values{"_pragma": append(pragmas, "query_only(ON)")})
	if err != nil {
		return nil, err
	}
	return &Store{write: write, read: read, engine: engine{
		dialect:         goose.DialectSQLite3,
		title:           "SQLite at " + path,
		hasVersionTable: "SELECT COUNT(*) > 0 FROM sqlite_master WHERE name = '" + goose.DefaultTablename + "'",
		clock:           "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)",
		dataDir:         dir,
	}}, nil
}

func sqlitePool(path string, size int, params url.Values) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open the database in DATA_DIR: %w", err)
	}
	db := sql.OpenDB(lockedConnector{connector, path})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

// lockedConnector opens one connection at a time, across processes. The first
// connection switches a new file to WAL, which fails if two of them try at once.
type lockedConnector struct {
	driver.Connector
	path string
}

func (c lockedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	lock, err := waitForLock(ctx, filepath.Join(filepath.Dir(c.path), "connect.lock"))
	if err != nil {
		return nil, err
	}
	defer filelock.Close(lock)
	// SQLite would create a file that everyone can read, and -wal and -shm files
	// with the same mode. Only a missing file is opened here: closing a file in
	// use would release all POSIX locks that this process holds on it.
	if file, err := os.OpenFile(c.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		file.Close()
	}
	return c.Connector.Connect(ctx)
}

// LockServer prevents a second server from using the same SQLite file until
// release is called or the process ends. Commands do not need the lock. On
// PostgreSQL, LockServer does nothing.
func (s *Store) LockServer() (release func(), err error) {
	if s.engine.dialect == goose.DialectPostgres {
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
	return func() { filelock.Close(file) }, nil
}

// lockFile opens and locks a file. It returns EWOULDBLOCK if the file is locked already.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.TryLock(file); err != nil {
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
		if err := background.Sleep(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}
