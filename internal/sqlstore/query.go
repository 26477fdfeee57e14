package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pressly/goose/v3"

	"telapi/internal/fault"
)

const (
	statementTimeout = 10 * time.Second
	pingTimeout      = 5 * time.Second
)

// Functions named ...Fields point to the fields of a noun in the order of its
// columns. Rows are read into them, and written from them.

// one reads a single thing; where there is none it fails with NOT_FOUND.
func one[T any](ctx context.Context, s *Store, thing string, fields func(*T) []any, query string, args ...any) (found T, err error) {
	err = s.during(ctx, "read "+thing, func(ctx context.Context) error {
		if !storable(args) {
			return notFound(thing)
		}
		err := s.db.QueryRowContext(ctx, query, args...).Scan(fields(&found)...)
		if errors.Is(err, sql.ErrNoRows) {
			return notFound(thing)
		}
		return err
	})
	return found, err
}

// list reads any number of things.
func list[T any](ctx context.Context, s *Store, things string, fields func(*T) []any, query string, args ...any) (all []T, err error) {
	err = s.during(ctx, "list "+things, func(ctx context.Context) error {
		if storable(args) {
			all, err = collect(ctx, s.db, fields, query, args...)
		}
		return err
	})
	return all, err
}

// querier is the database, or a transaction in it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect reads rows to their end, so that a transaction may go on.
func collect[T any](ctx context.Context, from querier, fields func(*T) []any, query string, args ...any) (all []T, err error) {
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var next T
		if err := rows.Scan(fields(&next)...); err != nil {
			return nil, err
		}
		all = append(all, next)
	}
	return all, rows.Err()
}

// itself is the fields of what has but one column.
func itself[T any](v *T) []any { return []any{v} }

// change writes a single thing; where there is none to change it fails with
// NOT_FOUND.
func (s *Store) change(ctx context.Context, verb, thing, query string, args ...any) error {
	return s.during(ctx, verb+" "+thing, func(ctx context.Context) error {
		changed, err := run(ctx, s.db, query, args...)
		if err == nil && changed == 0 {
			return notFound(thing)
		}
		return refused(err, thing)
	})
}

// amend changes a single thing from what it is by then: lock reads it and keeps
// others from changing it, and change says by which statement it is written.
// Where there is none it fails with NOT_FOUND.
func amend[T any](ctx context.Context, s *Store, thing string, fields func(*T) []any, lock, id string,
	change func(*T) (query string, args []any, err error)) (changed T, err error) {
	err = s.together(ctx, "update "+thing, func(ctx context.Context, tx *sql.Tx) error {
		if !storable([]any{id}) {
			return notFound(thing)
		}
		err := tx.QueryRowContext(ctx, lock, id).Scan(fields(&changed)...)
		if errors.Is(err, sql.ErrNoRows) {
			return notFound(thing)
		}
		if err != nil {
			return err
		}
		query, args, err := change(&changed)
		if err == nil {
			_, err = run(ctx, tx, query, args...)
		}
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return changed, nil
}

// changeAll runs one statement with many sets of values in one transaction, as
// far as there is something to change. Callers pass them in a fixed order of
// rows, so that two transactions never wait for each other in a circle.
func (s *Store) changeAll(ctx context.Context, doing, query string, sets ...[]any) error {
	if len(sets) == 0 {
		return nil
	}
	if s.engine.dialect == goose.DialectPostgres {
		return s.during(ctx, doing, func(ctx context.Context) error { return inOneTrip(ctx, s.db, query, sets) })
	}
	return s.together(ctx, doing, func(ctx context.Context, tx *sql.Tx) error {
		for _, args := range sets {
			if _, err := run(ctx, tx, query, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// touch runs a statement that takes an id and a moment.
func (s *Store) touch(ctx context.Context, doing, query string, moments map[string]time.Time) error {
	var sets [][]any
	for _, id := range slices.Sorted(maps.Keys(moments)) {
		sets = append(sets, []any{id, moments[id].UnixMilli()})
	}
	return s.changeAll(ctx, doing, query, sets...)
}

// run returns how many rows a statement changed.
func run(ctx context.Context, in interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any) (changed int64, err error) {
	if !storable(args) {
		return 0, errNotStorable
	}
	result, err := in.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// together commits all that do writes, or nothing where it fails.
func (s *Store) together(ctx context.Context, doing string, do func(context.Context, *sql.Tx) error) error {
	return s.during(ctx, doing, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := do(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// during bounds the time of a statement and says what was being done when it
// failed.
func (s *Store) during(ctx context.Context, doing string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := s.usable(); err != nil {
		return err
	}
	return failure(ctx, doing, do(ctx))
}

// usable refuses to work on a schema that is not there yet: requests come as soon
// as the server listens, and a missing table is no fault of theirs.
func (s *Store) usable() error {
	if !s.ready.Load() {
		return fault.Unavailable("The database", errors.New("not connected and migrated yet"))
	}
	return nil
}

var errNotStorable = fault.New(fault.Validation, "Text must be valid UTF-8 without NUL characters.")

// storable tells whether both databases take these values as text. PostgreSQL
// refuses what SQLite would keep, so nothing of the kind is in either.
func storable(args []any) bool {
	for _, arg := range args {
		if field, ok := arg.(*string); ok {
			arg = *field
		}
		if text, ok := arg.(string); ok && (!utf8.ValidString(text) || strings.ContainsRune(text, 0)) {
			return false
		}
	}
	return true
}
