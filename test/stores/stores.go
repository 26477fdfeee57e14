// Package stores opens embedded stores for tests.
package stores

import (
	"context"
	"log/slog"
	"testing"

	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
	"telapi/test/testkit"
)

// OpenSQLite opens a migrated database in dir until the test ends.
func OpenSQLite(t testing.TB, dir string) *sqlstore.Store {
	t.Helper()
	db, err := sqlstore.Open(sqlstore.Options{DataDir: dir})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	testkit.Must(t, db.Migrate(context.Background()))
	return db
}

// OpenEmbedded runs an empty embedded key-value store until the test ends.
func OpenEmbedded(t testing.TB) *redisstore.Store {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: t.TempDir()}, log)
	testkit.Must(t, err)
	t.Cleanup(engine.Close)
	store := redisstore.Open(engine.Options(log))
	t.Cleanup(store.Close)
	testkit.Must(t, store.Connect(t.Context()))
	return store
}
