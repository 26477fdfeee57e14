// Package sqlstore stores durable records: teams, API keys, endpoints, sessions,
// recordings, usage and settings. It uses PostgreSQL, which servers share, or an
// SQLite file in the data directory, with the same queries and migrations.
//
// An unreachable database does not end the process. Open does not connect,
// Connect waits for the database, and until then every operation returns
// SERVICE_UNAVAILABLE. Pools reconnect after an outage.
package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"

	"telapi/internal/redact"
)

// Options select the database.
type Options struct {
	// DSN is a postgres:// URL. Its sslmode and sslrootcert configure TLS as
	// in libpq. If it is empty, the store uses SQLite in DataDir.
	DSN redact.Secret
	// DataDir is the directory of the SQLite file. Open creates it.
	DataDir string
	Logger  *slog.Logger

	busyTimeout time.Duration // of SQLite; 0: sqliteBusyTimeout
}

// Store is the database. It is safe for concurrent use.
type Store struct {
	write    *sql.DB // SQLite: a single connection
	read     *sql.DB // PostgreSQL: the same pool as write
	engine   engine
	schema   *goose.Provider
	log      *slog.Logger
	migrated atomic.Bool // the schema is known to be up to date
}

// engine holds the differences between the two databases.
type engine struct {
	dialect      goose.Dialect
	title        string // for people, without credentials
	versionTable string // query: does goose's version table exist?
	clock        string // query: the database's clock in Unix milliseconds
	dataDir      string // SQLite only
}

// Open returns a store without connecting to the database. It fails only for
// invalid options.
func Open(o Options) (s *Store, err error) {
	if o.DSN != "" {
		s, err = openPostgres(o.DSN)
	} else {
		s, err = openSQLite(o.DataDir, cmp.Or(o.busyTimeout, sqliteBusyTimeout))
	}
	if err != nil {
		return nil, err
	}
	s.log = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if s.schema, err = newMigrationProvider(s.write, s.engine.dialect); err != nil {
		return nil, fmt.Errorf("prepare migrations: %w", err)
	}
	return s, nil
}

// String describes the database for people, without credentials.
func (s *Store) String() string { return s.engine.title }

// Ping checks that the database answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return wrap(ctx, "ping the database", s.read.PingContext(ctx))
}

// Ready checks that the database answers and is migrated.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.checkMigrated(); err != nil {
		return err
	}
	return s.Ping(ctx)
}

// Clock returns the time of the database's clock.
func (s *Store) Clock(ctx context.Context) (time.Time, error) {
	var ms int64
	if err := s.read.QueryRowContext(ctx, s.engine.clock).Scan(&ms); err != nil {
		return time.Time{}, wrap(ctx, "read the database clock", err)
	}
	return time.UnixMilli(ms), nil
}

// Close closes all connections.
func (s *Store) Close() error { return errors.Join(s.read.Close(), s.write.Close()) }
