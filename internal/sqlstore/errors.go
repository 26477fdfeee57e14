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
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"telapi/internal/fault"
)

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
	"40":    true, // transaction rolled back in favor of another one
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
	for _, lost := range []error{io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, sql.ErrConnDone, pgconn.ErrConnClosed} {
		if errors.Is(err, lost) {
			return true
		}
	}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	_, path := errors.AsType[*fs.PathError](err)
	return connect || network || path
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

// notFound leaves out the ID: the caller may have passed a whole API key.
func notFound(kind string) *fault.Error {
	return fault.New(fault.NotFound, "The %s was not found.", kind)
}
