package harness

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/testkit"
)

// StartRuntime starts a call runtime on the key-value store of env.
func StartRuntime(t testing.TB, env Env) *calls.Runtime {
	t.Helper()
	r, err := calls.New(calls.Options{Store: storeOptions(t, env), Name: "runtime-" + uuid.NewString()[:8]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// StoreClient connects to the key-value store of env.
func StoreClient(t testing.TB, env Env) rueidis.Client {
	t.Helper()
	options := storeOptions(t, env)
	options.DisableCache = true
	client, err := rueidis.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func storeOptions(t testing.TB, env Env) rueidis.ClientOption {
	t.Helper()
	options, err := calls.Locate(env["REDIS_URL"], env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	return options
}

// Accept claims the next offered session.
func Accept(t testing.TB, r *calls.Runtime) *calls.Channel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	ch, err := r.Accept(ctx, nil)
	if err != nil {
		t.Fatalf("accept a session: %v", err)
	}
	return ch
}

// Receive returns the next entry of the runtime stream and commits its position.
func Receive(t testing.TB, ch *calls.Channel) wire.Entry {
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
func SendChat(t testing.TB, ch *calls.Channel, chat string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(chat)}); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// WithDataDir sets DATA_DIR in env, so that a runtime finds the embedded store.
func WithDataDir(t testing.TB, env Env) Env {
	if env["DATA_DIR"] == "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return env
}
