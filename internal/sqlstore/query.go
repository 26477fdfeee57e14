package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/page"
)

const (
	statementTimeout = 10 * time.Second
	pingTimeout      = 5 * time.Second
)

// executor is a pool or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Operations of a Store are get, list, exec, update, execBatch, and inTx with queryRow, queryAll
// and execRows. Functions named ...Fields, and parameters called fields, return pointers to the
// fields of a record in the order of its columns. Rows are scanned into them and inserted from them.

// get reads one record from the read pool.
func get[T any](ctx context.Context, s *Store, kind string, fields func(*T) []any, query string, args ...any) (found T, err error) {
	err = s.do(ctx, "read "+kind, func(ctx context.Context) (err error) {
		found, err = queryRow(ctx, s.read, kind, fields, query, args...)
		return err
	})
	return found, err
}

// queryRow reads one record. It returns NOT_FOUND if no row matches.
func queryRow[T any](ctx context.Context, on executor, kind string, fields func(*T) []any, query string, args ...any) (found T, err error) {
	if !validText(args) {
		return found, notFound(kind)
	}
	err = on.QueryRowContext(ctx, query, args...).Scan(fields(&found)...)
	if errors.Is(err, sql.ErrNoRows) {
		return found, notFound(kind)
	}
	return found, err
}

// list reads any number of records from the read pool.
func list[T any](ctx context.Context, s *Store, kind string, fields func(*T) []any, query string, args ...any) (all []T, err error) {
	err = s.do(ctx, "list "+kind, func(ctx context.Context) (err error) {
		if validText(args) { // otherwise no row matches
			all, err = queryAll(ctx, s.read, fields, query, args...)
		}
		return err
	})
	return all, err
}

// queryAll reads any number of records. It closes the result before it returns, so
// that a transaction can run its next statement.
func queryAll[T any](ctx context.Context, on executor, fields func(*T) []any, query string, args ...any) (all []T, err error) {
	rows, err := on.QueryContext(ctx, query, args...)
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

// column is a Fields function for results with a single column.
func column[T any](v *T) []any { return []any{v} }

// exec writes one record, and audit entries in the same transaction. It returns NOT_FOUND
// if no row matches.
func (s *Store) exec(ctx context.Context, verb, kind string, entries []audit.Entry, query string, args ...any) error {
	write := func(ctx context.Context, on executor) error {
		changed, err := execRows(ctx, on, query, args...)
		if err == nil && changed == 0 {
			return notFound(kind)
		}
		return constraintError(err, kind)
	}
	if len(entries) == 0 { // needs no transaction
		return s.do(ctx, verb+" "+kind, func(ctx context.Context) error { return write(ctx, s.write) })
	}
	return s.inTx(ctx, verb+" "+kind, func(ctx context.Context, tx *sql.Tx) error {
		if err := write(ctx, tx); err != nil {
			return err
		}
		return writeAudit(ctx, tx, entries)
	})
}

// execRows runs a statement and returns the number of rows that it changed.
func execRows(ctx context.Context, on executor, query string, args ...any) (changed int64, err error) {
	if !validText(args) {
		return 0, errInvalidText
	}
	result, err := on.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// update changes a record in a transaction, and writes the audit entries that change returns.
// lockQuery reads the record and blocks concurrent updates of it. update returns NOT_FOUND if no
// row matches id.
func update[T any](ctx context.Context, s *Store, kind string, fields func(*T) []any, lockQuery, id string,
	change func(context.Context, *sql.Tx, *T) ([]audit.Entry, error)) (updated T, err error) {
	err = s.inTx(ctx, "update "+kind, func(ctx context.Context, tx *sql.Tx) error {
		record, err := queryRow(ctx, tx, kind, fields, lockQuery, id)
		if err != nil {
			return err
		}
		entries, err := change(ctx, tx, &record)
		if err != nil {
			return err
		}
		updated = record
		return writeAudit(ctx, tx, entries)
	})
	return updated, err
}

// execBatch runs one statement with each set of values, all in one transaction, and returns the
// number of changed rows. Unlike exec, it ignores that a set matches no row. Callers sort the
// sets by row, so that concurrent transactions cannot deadlock.
func (s *Store) execBatch(ctx context.Context, op, query string, sets ...[]any) (changed int64, err error) {
	if len(sets) == 0 {
		return 0, nil
	}
	if s.engine.dialect == goose.DialectPostgres {
		var batch pgx.Batch
		for _, args := range sets {
			batch.Queue(query, args...).Exec(func(result pgconn.CommandTag) error {
				changed += result.RowsAffected()
				return nil
			})
		}
		err = s.do(ctx, op, func(ctx context.Context) error {
			if !validText(slices.Concat(sets...)) {
				return errInvalidText
			}
			return sendBatch(ctx, s.write, &batch)
		})
		return changed, err
	}
	err = s.inTx(ctx, op, func(ctx context.Context, tx *sql.Tx) error {
		for _, args := range sets {
			rows, err := execRows(ctx, tx, query, args...)
			if err != nil {
				return err
			}
			changed += rows
		}
		return nil
	})
	return changed, err
}

// touch runs a statement that takes an ID and a time for every entry of times.
func (s *Store) touch(ctx context.Context, op, query string, times map[string]time.Time) error {
	var sets [][]any
	for _, id := range slices.Sorted(maps.Keys(times)) {
		sets = append(sets, []any{id, times[id].UnixMilli()})
	}
	_, err := s.execBatch(ctx, op, query, sets...)
	return err
}

// inTx runs a function in a transaction. It commits if run succeeds.
func (s *Store) inTx(ctx context.Context, op string, run func(context.Context, *sql.Tx) error) error {
	return s.do(ctx, op, func(ctx context.Context) error {
		tx, err := s.write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := run(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// do runs a statement or transaction with statementTimeout and adds the
// operation to its error.
func (s *Store) do(ctx context.Context, op string, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if err := s.checkMigrated(); err != nil {
		return err
	}
	return wrap(ctx, op, run(ctx))
}

// checkMigrated returns SERVICE_UNAVAILABLE until Migrate has succeeded: the
// server accepts requests before the schema exists.
func (s *Store) checkMigrated() error {
	if !s.migrated.Load() {
		return fault.Unavailable("The database", errors.New("not connected and migrated yet"))
	}
	return nil
}

var errInvalidText = fault.New(fault.Validation, "Text must be valid UTF-8 without NUL characters.")

// validText reports whether all text in args is valid UTF-8 without NUL. PostgreSQL
// rejects other text, which SQLite would store.
func validText(args []any) bool {
	return !slices.ContainsFunc(args, func(arg any) bool {
		text, _ := arg.(string)
		if field, ok := arg.(*string); ok {
			text = *field
		}
		return !utf8.ValidString(text) || strings.ContainsRune(text, 0)
	})
}

// timestamp stores a time as Unix milliseconds and the zero time as NULL.
type timestamp struct{ *time.Time }

func (t timestamp) Value() (driver.Value, error) {
	if t.IsZero() {
		return nil, nil // NULL
	}
	return t.UnixMilli(), nil
}

func (t timestamp) Scan(from any) error {
	var ms sql.Null[int64]
	if err := ms.Scan(from); err != nil {
		return err
	}
	*t.Time = time.Time{}
	if ms.Valid {
		*t.Time = time.UnixMilli(ms.V).UTC()
	}
	return nil
}

// jsonColumn stores a value as JSON text and nil as NULL.
type jsonColumn[T any] struct{ field *T }

func asJSON[T any](field *T) jsonColumn[T] { return jsonColumn[T]{field} }

func (c jsonColumn[T]) Value() (driver.Value, error) {
	text, err := json.Marshal(*c.field, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", *c.field, err)
	}
	if string(text) == "null" {
		return nil, nil // NULL
	}
	return string(text), nil
}

func (c jsonColumn[T]) Scan(from any) error {
	var text sql.Null[string]
	if err := text.Scan(from); err != nil || !text.Valid {
		return err
	}
	return json.Unmarshal([]byte(text.V), c.field)
}

// digest stores a SHA-256 sum as hex text.
type digest struct{ sum *[32]byte }

func (d digest) Value() (driver.Value, error) { return hex.EncodeToString(d.sum[:]), nil }

func (d digest) Scan(from any) error {
	text, _ := from.(string)
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != len(d.sum) {
		return errors.New("invalid digest") // without the value, which is secret
	}
	copy(d.sum[:], raw)
	return nil
}

// teamsCondition returns the condition that a row belongs to the selected teams. Its parameter $1
// is the ID of the team, which is empty if all teams are selected or none.
func teamsCondition(selected page.Teams) string {
	if _, all := selected.Team(); all {
		return `$1 = ''`
	}
	return `team_id = NULLIF($1, '')` // matches no row if no team is selected
}
