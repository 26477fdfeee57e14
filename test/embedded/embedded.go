// Package embedded opens embedded key-value stores for tests.
package embedded

import (
	"log/slog"
	"testing"

	"telapi/internal/redisstore"
	"telapi/test/testkit"
)

// Open runs an empty store until the test ends.
func Open(t testing.TB) *redisstore.Store {
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
