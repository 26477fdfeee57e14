// Package sqlite opens databases for tests.
package sqlite

import (
	"context"
	"testing"

	"telapi/internal/sqlstore"
	"telapi/test/testkit"
)

// Open opens a migrated database in dir until the test ends.
func Open(t testing.TB, dir string) *sqlstore.Store {
	t.Helper()
	db, err := sqlstore.Open(sqlstore.Options{DataDir: dir})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	testkit.Must(t, db.Migrate(context.Background()))
	return db
}
