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
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"telapi/internal/fault"
	"telapi/internal/redact"
)

// Options select the database.
type Options struct {
	// DSN is config.DatabaseDSN: a postgres:// URL. Its sslmode and sslrootcert configure TLS as
	// in libpq. If it is empty, the store uses SQLite in DataDir.
	DSN redact.Secret
	// DataDir is the directory of the SQLite file. Open creates it.
	DataDir string
	Logger  *slog.Logger

	busyTimeout time.Duration // of SQLite; 0: sqliteBusyTimeout
}

// Store is the database. It is safe for concurrent use.
type Store struct {
	write    *sql.DB // a single connection if the database is SQLite
	read     *sql.DB // the same pool as write if the database is PostgreSQL
	engine   engine
	log      *slog.Logger
	migrated atomic.Bool // Migrate has succeeded
}

// engine holds the differences between the two databases.
type engine struct {
	dialect         goose.Dialect
	title           string // for people, without credentials
	hasVersionTable string // query that returns whether goose's version table exists
	clock           string // query that returns the database's time in Unix milliseconds
	dataDir         string // SQLite only
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
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.write.Close())
}

// wrap adds the operation to a driver's error and classifies it: an outage
// becomes SERVICE_UNAVAILABLE, cancellation stays context.Canceled, and a
// fault.Error is returned unchanged. ctx is the statement's context.
func wrap(ctx context.Context, op string, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || err == nil {
		return err
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	unavailable := isUnavailable(err)
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = connect.Unwrap() // the outer text contains the user and the database name
	}
	err = fmt.Errorf("%s: %w", op, err)
	if unavailable {
		return fault.Unavailable("The database", err)
	}
	return err
}

// unavailableStates are the SQLSTATE classes and codes of temporary failures.
var unavailableStates = map[string]bool{
	"08":    true, // connection lost
	"28":    true, // login rejected, for example while a password is rotated
	"40":    true, // deadlock or conflict with another transaction
	"53":    true, // out of connections, memory or disk space
	"57":    true, // shutting down, starting up, or canceled by an operator
	"58":    true, // disk failure
	"25006": true, // read only: a standby before its promotion
	"3D000": true, // the database does not exist (yet)
	"55P03": true, // lock timeout
}

// sqliteStates maps SQLite result codes to SQLSTATE codes.
var sqliteStates = map[int]string{
	sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: "23505",
	sqlite3.SQLITE_CONSTRAINT_UNIQUE:     "23505",
	sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "23503",
	sqlite3.SQLITE_BUSY:                  "55P03",
	sqlite3.SQLITE_LOCKED:                "55P03",
	sqlite3.SQLITE_PROTOCOL:              "55P03",
	sqlite3.SQLITE_READONLY:              "25006",
	sqlite3.SQLITE_FULL:                  "53100",
	sqlite3.SQLITE_IOERR:                 "58030",
	sqlite3.SQLITE_CANTOPEN:              "58030",
}

// sqlState returns the SQLSTATE of a database's error, or "" for other errors.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return cmp.Or(sqliteStates[e.Code()], sqliteStates[e.Code()&0xff])
	}
	return ""
}

func isUnavailable(err error) bool {
	if state := sqlState(err); len(state) == 5 {
		return unavailableStates[state] || unavailableStates[state[:2]]
	}
	lost := []error{io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, sql.ErrConnDone, pgconn.ErrConnClosed}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	_, path := errors.AsType[*fs.PathError](err)
	return connect || network || path || slices.ContainsFunc(lost, func(l error) bool { return errors.Is(err, l) })
}

// constraintError turns a constraint violation into an error for the caller and
// returns other errors unchanged.
func constraintError(err error, kind string) error {
	switch sqlState(err) {
	case "23505":
		return fault.New(fault.Validation, "The ID of this %s is already in use.", kind).WithCause(err)
	case "23503": // teams are the only records that others reference
		return notFound("team").WithCause(err)
	}
	return err
}

// notFound returns an error without the ID: a caller may have passed a whole API
// key as ID.
func notFound(kind string) *fault.Error {
	return fault.New(fault.NotFound, "The %s was not found.", kind)
}
