package e2e

import (
	"context"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
)

func receive(t *testing.T, ch *callruntime.Channel) wire.Entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
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

// The whole way: a token, a socket, a runtime that accepts the session, a chat
// there and back, and the end.
func TestBrowserAndRuntimeTalk(t *testing.T) {
	backends(t, func(t *testing.T, env boot.Env) {
		env = withDataDir(t, env)
		i := boot.Start(t, env)
		own := newTenant(t, i, "own")
		session, token := issueToken(t, i, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
		b := connect(t, i, session, token, "")
		b.expect(`"event":"ready"`, `"resumed":false`, `"textChat":true`, `"maxMessageBytes":65536`)

		id := b.chat("hello") // before a runtime is there: kept and acknowledged
		b.expect(`"event":"ack"`, id)

		runtime := startRuntime(t, env)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ch, err := runtime.Accept(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := receive(t, ch); e.Kind != wire.KindSession || e.Event != "connected" {
			t.Errorf("first entry is %+v", e)
		}
		if e := receive(t, ch); e.Kind != wire.KindFrame || string(e.Message.Chat) != `{"text":"hello"}` || e.Message.MessageID != id {
			t.Errorf("second entry is %+v", e)
		}
		if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"good day"}`)}); err != nil {
			t.Fatal(err)
		}
		m := b.expect(`"type":"chat"`, `good day`, `"direction":"to_browser"`, session)
		if m.StreamID == "" || m.MessageID == "" || m.Timestamp == 0 {
			t.Errorf("a durable frame without cursor, id or time: %s", m.raw)
		}
		if err := ch.End(ctx, "done"); err != nil {
			t.Fatal(err)
		}
		if code := b.closeCode(); code != 4503 {
			t.Errorf("closed with %d", code)
		}
		boot.Eventually(t, 5*time.Second, "the session is ended", func() bool {
			_, body := call(t, i, "GET", "/api/v1/sessions/"+session, "X-API-Key", own.key)
			return containsAll(body, `"state":"ended"`)
		})
	})
}
