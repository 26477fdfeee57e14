package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
)

// sqlitePragmas hold on every connection.
var sqlitePragmas = []string{
	// Wait for another writer, the command line beside the server for one,
	// before giving up. Must stay below statementTimeout.
	"busy_timeout(5000)",
	// Readers and the one writer do not stop each other, across processes.
	"journal_mode(WAL)",
	// A commit outlives a power cut: a revoked key must stay revoked. Writes
	// are few.
	"synchronous(FULL)",
	// SQLite checks references only when asked to.
	"foreign_keys(ON)",
}

const sqliteFile = "telapi.db"

// Exists tells whether there is a database under a data folder, without making
// one.
func Exists(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, sqliteFile))
	return err == nil
}

func openSQLite(dataDir string) (*sql.DB, engine, error) {
	if dataDir == "" {
		return nil, engine{}, errors.New("DATA_DIR must name a folder when DATABASE_URL is empty")
	}
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, engine{}, fmt.Errorf("find DATA_DIR: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, engine{}, fmt.Errorf("create DATA_DIR: %w", err)
	}
	path := filepath.Join(dir, sqliteFile)
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_pragma": sqlitePragmas,
		// A transaction takes the write lock when it begins: one that read
		// first could only fail when it wants to write later.
		"_txlock": {"immediate"},
	}.Encode()}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, engine{}, fmt.Errorf("prepare the database under DATA_DIR: %w", err)
	}
	db := sql.OpenDB(oneByOne{connector, path})
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	return db, engine{
		dialect:      goose.DialectSQLite3,
		title:        "SQLite at " + path,
		versionTable: "SELECT COUNT(*) > 0 FROM sqlite_master WHERE name = '" + goose.DefaultTablename + "'",
		clock:        "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)",
		dataDir:      dir,
	}, nil
}

// oneByOne opens connections under a lock that all processes heed. The first
// connection to a new file turns it to WAL, and two that do so at once fail with
// whatever SQLite trips over.
type oneByOne struct {
	driver.Connector
	path string
}

func (o oneByOne) Connect(ctx context.Context) (driver.Conn, error) {
	lock, err := awaitLockFile(ctx, filepath.Join(filepath.Dir(o.path), "connect.lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	// SQLite would make the file readable for everybody; its companions inherit
	// the mode. Only a missing file is opened here: closing one that is in use
	// would drop all locks this process has on it.
	if file, err := os.OpenFile(o.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
		file.Close()
	}
	return o.Connector.Connect(ctx)
}
