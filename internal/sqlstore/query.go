package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"telapi/internal/fault"
)

const (
	statementTimeout = 10 * time.Second
	pingTimeout      = 5 * time.Second
)

// row is a *sql.Row or the current one of *sql.Rows.
type row interface{ Scan(into ...any) error }

// one reads a single thing; where there is none it fails with NOT_FOUND.
func one[T any](ctx context.Context, s *Store, thing string, scan func(row) (T, error), query string, args ...any) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var none T
	if err := s.usable(); err != nil {
		return none, err
	}
	if !storable(args) {
		return none, notFound(thing)
	}
	found, err := scan(s.db.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return none, notFound(thing)
	}
	if err != nil {
		return none, failure(ctx, "read "+thing, err)
	}
	return found, nil
}

// list reads any number of things.
func list[T any](ctx context.Context, s *Store, things string, scan func(row) (T, error), query string, args ...any) (_ []T, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	defer func() { err = failure(ctx, "list "+things, err) }()
	if err := s.usable(); err != nil {
		return nil, err
	}
	if !storable(args) {
		return nil, nil
	}
	return collect(ctx, s.db, scan, query, args...)
}

// querier is the database, or a transaction in it.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect reads rows to their end, so that a transaction may go on.
func collect[T any](ctx context.Context, from querier, scan func(row) (T, error), query string, args ...any) (all []T, err error) {
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		next, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, next)
	}
	return all, rows.Err()
}

func scanID(r row) (id string, err error) {
	err = r.Scan(&id)
	return id, err
}

// change writes a single thing; where there is none to change it fails with
// NOT_FOUND.
func (s *Store) change(ctx context.Context, verb, thing, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := s.usable(); err != nil {
		return err
	}
	if !storable(args) {
		return errNotStorable
	}
	result, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return failure(ctx, verb+" "+thing, refused(err, thing))
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return notFound(thing)
	}
	return nil
}

// changeAll runs one statement with many sets of values in one transaction.
// Callers pass them in a fixed order of rows, so that two transactions never
// wait for each other in a circle.
func (s *Store) changeAll(ctx context.Context, doing, query string, sets [][]any) error {
	if len(sets) == 0 {
		return nil
	}
	return s.together(ctx, doing, func(ctx context.Context, tx *sql.Tx) error {
		for _, args := range sets {
			if !storable(args) {
				return errNotStorable
			}
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// together commits all that do writes, or nothing where it fails.
func (s *Store) together(ctx context.Context, doing string, do func(context.Context, *sql.Tx) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	defer func() { err = failure(ctx, doing, err) }()
	if err := s.usable(); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
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
		if text, ok := arg.(string); ok && (!utf8.ValidString(text) || strings.ContainsRune(text, 0)) {
			return false
		}
	}
	return true
}

// millis is a moment as it is stored: NULL for none.
func millis(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

// moment is the inverse of millis.
func moment(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}
