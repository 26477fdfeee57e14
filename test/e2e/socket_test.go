package e2e

import (
	"context"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// The whole way: a token, a socket, a runtime that accepts the session, a chat
// there and back, and the end.
func TestBrowserAndRuntimeExchangeMessages(t *testing.T) {
	backends(t, func(t *testing.T, env boot.Env) {
		env = talk.WithDataDir(t, env)
		i := boot.Start(t, env)
		own := newTenant(t, i, "own")
		session, token := talk.Issue(t, i, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
		b := talk.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`, `"textChat":true`, `"maxMessageBytes":65536`)

		id := b.Chat("hello") // before a runtime is there: kept and acknowledged
		b.Expect(`"event":"ack"`, id)

		runtime := talk.StartRuntime(t, env)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ch, err := runtime.Accept(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := talk.Receive(t, ch); e.Kind != wire.KindSession || e.Event != "connected" {
			t.Errorf("first entry is %+v", e)
		}
		if e := talk.Receive(t, ch); e.Kind != wire.KindFrame || string(e.Message.Chat) != `{"text":"hello"}` || e.Message.MessageID != id {
			t.Errorf("second entry is %+v", e)
		}
		if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"good day"}`)}); err != nil {
			t.Fatal(err)
		}
		m := b.Expect(`"type":"chat"`, `good day`, `"direction":"to_browser"`, session)
		if m.StreamID == "" || m.MessageID == "" || m.Timestamp == 0 {
			t.Errorf("a durable frame without cursor, id or time: %s", m.Raw)
		}
		if err := ch.End(ctx, "done"); err != nil {
			t.Fatal(err)
		}
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("closed with %d", code)
		}
		poll.Until(t, "the session is ended", func() bool {
			_, body := call(t, i, "GET", "/api/v1/sessions/"+session, "X-API-Key", own.key)
			return containsAll(body, `"state":"ended"`)
		})
	})
}
