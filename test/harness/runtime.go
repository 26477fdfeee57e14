package harness

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/internal/team"
	"telapi/test/testkit"
)

// StartRuntime starts a call runtime for the sessions of every team.
func StartRuntime(t testing.TB, i *Instance) *callruntime.Runtime {
	t.Helper()
	created, err := i.App.Admin().Teams.Create(t.Context(), team.Team{Name: "runtimes"})
	testkit.Must(t, err)
	_, key := NewKey(t, i, created.ID, auth.RunAllCalls)
	return ConnectRuntime(t, i.URL, key)
}

// ConnectRuntime starts a call runtime with a key.
func ConnectRuntime(t testing.TB, url, key string) *callruntime.Runtime {
	t.Helper()
	r, err := callruntime.New(callruntime.Options{URL: url, Key: key, Name: "runtime-" + uuid.NewString()[:8]})
	testkit.Must(t, err)
	t.Cleanup(r.Close)
	return r
}

// StoreClient connects to the key-value store of env.
func StoreClient(t testing.TB, env Env) rueidis.Client {
	t.Helper()
	store, err := config.ParseRedisURL(env["REDIS_URL"])
	if env["REDIS_URL"] == "" {
		store, _, err = kv.FindEmbedded(env["DATA_DIR"])
	}
	testkit.Must(t, err)
	client, err := rueidis.NewClient(kv.ClientOption(store))
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

// Accept claims the next offered session.
func Accept(t testing.TB, r *callruntime.Runtime) *callruntime.Channel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	ch, err := r.Accept(ctx, wire.Accept{})
	if err != nil {
		t.Fatalf("accept a session: %v", err)
	}
	return ch
}

// Receive returns the next entry of the channel and commits its position.
func Receive(t testing.TB, ch *callruntime.Channel) wire.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	d, err := ch.Receive(ctx)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	if err := ch.Commit(ctx, d.Position); err != nil {
		t.Fatalf("commit: %v", err)
	}
	return d.Entry
}

// SendChat sends a chat message with the given JSON object to the browser.
func SendChat(t testing.TB, ch *callruntime.Channel, chat string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(chat)}); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// Path returns the path of a work item's callback, with its query.
func Path(item wire.Awaited) string {
	_, rest, _ := strings.Cut(item.URL, "://")
	return rest[strings.IndexByte(rest, '/'):]
}

// WithDataDir sets DATA_DIR in env, so that commands and StoreClient find the embedded store.
func WithDataDir(t testing.TB, env Env) Env {
	if env["DATA_DIR"] == "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return env
}
