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
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"telapi/internal/fault"
)

// failure turns what a driver reports into what a caller can act on: a database
// that cannot serve now is SERVICE_UNAVAILABLE, a cancelled context stays one,
// refusals pass, and the rest says what was being done. ctx is the one the
// statement ran under.
func failure(ctx context.Context, doing string, err error) error {
	var refusal *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", doing, context.Canceled)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.Unavailable("The database", fmt.Errorf("%s: %w", doing, context.DeadlineExceeded))
	}
	away := unavailable(err)
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		err = connect.Unwrap() // whose text, unlike the outer one, shows no part of the URL but the address
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if away {
		return fault.Unavailable("The database", err)
	}
	return err
}

// unavailableStates are the SQLSTATE classes, and single states, of a database
// that cannot serve now but may later.
var unavailableStates = map[string]bool{
	"08":    true, // connection lost
	"28":    true, // refused to let us in: a password being rotated
	"40":    true, // rolled back in favour of another transaction
	"53":    true, // out of connections, memory or disk
	"57":    true, // shutting down, starting up, or cancelled by an operator
	"58":    true, // its disk fails
	"25006": true, // read only: a standby that is not yet promoted
	"3D000": true, // the database does not exist (yet)
	"55P03": true, // a lock was not to be had
}

// sqliteStates are the SQLSTATEs of what SQLite reports by number.
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

// state is the SQLSTATE of an error; empty for one the database did not report.
func state(err error) string {
	var server *pgconn.PgError
	var local *sqlite.Error
	switch {
	case errors.As(err, &server):
		return server.Code
	case errors.As(err, &local):
		return cmp.Or(sqliteStates[local.Code()], sqliteStates[local.Code()&0xff])
	}
	return ""
}

func unavailable(err error) bool {
	if code := state(err); len(code) == 5 {
		return unavailableStates[code] || unavailableStates[code[:2]]
	}
	var connect *pgconn.ConnectError
	var network net.Error
	var folder *fs.PathError
	return errors.As(err, &connect) || errors.As(err, &network) || errors.As(err, &folder) ||
		slices.ContainsFunc(lostConnection, func(lost error) bool { return errors.Is(err, lost) })
}

var lostConnection = []error{io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, sql.ErrConnDone, pgconn.ErrConnClosed}

// refused turns a broken constraint into a refusal; other errors pass, and none.
func refused(err error, thing string) error {
	switch state(err) {
	case "23505":
		return fault.New(fault.Validation, "Another %s has this id already.", thing).WithCause(err)
	case "23503":
		return fault.New(fault.NotFound, "There is no team with this id.").WithCause(err) // the only thing others refer to
	}
	return err
}

// notFound names the thing and not its id, which a caller may have mistaken a
// whole API key for.
func notFound(thing string) error {
	return fault.New(fault.NotFound, "There is no %s with this id.", thing)
}
