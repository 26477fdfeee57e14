package talk

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
)

// StartRuntime starts a call runtime on the store of an environment.
func StartRuntime(t testing.TB, env boot.Env) *callruntime.Runtime {
	t.Helper()
	where, err := callruntime.Locate(env["REDIS_URL"], env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	r, err := callruntime.New(callruntime.Options{Store: where, Name: "runtime-" + uuid.NewString()[:8]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// Accept takes the next session that is offered.
func Accept(t testing.TB, r *callruntime.Runtime) *callruntime.Channel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ch, err := r.Accept(ctx, nil)
	if err != nil {
		t.Fatalf("accept a session: %v", err)
	}
	return ch
}

// Receive returns what happened next, and commits it.
func Receive(t testing.TB, ch *callruntime.Channel) wire.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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

// Say sends a chat message to the browser.
func Say(t testing.TB, ch *callruntime.Channel, chat string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(chat)}); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// WithDataDir gives an environment a data folder that a runtime can join.
func WithDataDir(t testing.TB, env boot.Env) boot.Env {
	if env["DATA_DIR"] == "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return env
}
