// Package sqlstore keeps what must not be lost: teams, API keys, endpoints, the
// account of speech, and settings. It speaks to PostgreSQL, which any number of
// servers share, or to an SQLite file under the data folder, with one set of
// queries and migrations for both.
//
// A database that is away is no reason for a process to end: Open does not
// touch it, Connect waits for it, and every operation meanwhile fails with
// SERVICE_UNAVAILABLE. One that comes back is used again without reopening.
package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"

	"telapi/internal/redact"
)

// Options say which database to use.
type Options struct {
	// DSN is a postgres:// URL; its sslmode and sslrootcert decide about TLS as
	// they do for libpq. Empty: SQLite under DataDir.
	DSN redact.Secret
	// DataDir is the folder of the SQLite file; created when missing.
	DataDir string
	Logger  *slog.Logger
}

// Store is the database. It is safe for concurrent use.
type Store struct {
	db     *sql.DB
	engine engine
	schema *goose.Provider
	log    *slog.Logger
	ready  atomic.Bool // the schema is known to be up to date
}

// engine is what tells one database from the other.
type engine struct {
	dialect      goose.Dialect
	title        string // for people, without credentials
	versionTable string // query: has any migration ever run here?
	clock        string // query: ms since 1970 by the database's own clock
	dataDir      string // SQLite alone
}

// Open returns a store without connecting. It fails for settings that can never
// work, not for a server that is away.
func Open(o Options) (*Store, error) {
	s := &Store{log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if o.DSN != "" {
		s.db, s.engine, err = openPostgres(o.DSN)
	} else {
		s.db, s.engine, err = openSQLite(o.DataDir)
	}
	if err != nil {
		return nil, err
	}
	if s.schema, err = prepareMigrations(s.db, s.engine.dialect); err != nil {
		return nil, fmt.Errorf("prepare migrations: %w", err)
	}
	return s, nil
}

// String names the database for people, without credentials.
func (s *Store) String() string { return s.engine.title }

// Ping tells whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return failure(ctx, "ping the database", s.db.PingContext(ctx))
}

// Ready tells whether the database answers and its schema is there.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.usable(); err != nil {
		return err
	}
	return s.Ping(ctx)
}

// Clock is the time by the database's own clock.
func (s *Store) Clock(ctx context.Context) (time.Time, error) {
	var ms int64
	if err := s.db.QueryRowContext(ctx, s.engine.clock).Scan(&ms); err != nil {
		return time.Time{}, failure(ctx, "ask the database for its time", err)
	}
	return time.UnixMilli(ms), nil
}

// Close gives up all connections.
func (s *Store) Close() error { return s.db.Close() }
