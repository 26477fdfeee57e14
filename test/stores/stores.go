// Package stores opens embedded stores for tests.
package stores

import (
	"context"
	"log/slog"
	"testing"

	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

// OpenSQLite opens a migrated database in dir until the test ends.
func OpenSQLite(t testing.TB, dir string) *sqlstore.Store {
	t.Helper()
	db, err := sqlstore.Open(sqlstore.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := db.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return db
}

// OpenEmbedded runs an empty embedded key-value store until the test ends.
func OpenEmbedded(t testing.TB) *redisstore.Store {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: t.TempDir()}, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	store := redisstore.Open(engine.Options(log))
	t.Cleanup(store.Close)
	if err := store.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store
}
