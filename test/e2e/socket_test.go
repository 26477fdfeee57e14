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

// A session from token to end: connect, accept, chat in both directions, end.
func TestBrowserAndRuntimeExchangeMessages(t *testing.T) {
	onAllStores(t, func(t *testing.T, env boot.Env) {
		env = talk.WithDataDir(t, env)
		i := boot.Start(t, env)
		own := boot.NewTenant(t, i, "own")
		session, token := talk.Issue(t, i, own.Key, map[string]any{"endpointId": own.Endpoint.ID, "mode": "chat"})
		b := talk.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`, `"textChat":true`, `"maxMessageBytes":65536`)

		id := b.Chat("hello") // stored and acknowledged before a runtime accepts
		b.Expect(`"event":"ack"`, id)

		runtime := talk.StartRuntime(t, env)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ch, err := runtime.Accept(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := talk.Receive(t, ch); e.Kind != wire.KindSession || e.Event != "connected" {
			t.Errorf("first entry is %+v, want connected", e)
		}
		if e := talk.Receive(t, ch); e.Kind != wire.KindFrame || string(e.Message.Chat) != `{"text":"hello"}` || e.Message.MessageID != id {
			t.Errorf("second entry is %+v, want the chat", e)
		}
		if err := ch.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"good day"}`)}); err != nil {
			t.Fatal(err)
		}
		m := b.Expect(`"type":"chat"`, `good day`, `"direction":"to_browser"`, session)
		if m.StreamID == "" || m.MessageID == "" || m.Timestamp == 0 {
			t.Errorf("frame %s, want streamId, messageId and timestamp", m.Raw)
		}
		if err := ch.End(ctx, "done"); err != nil {
			t.Fatal(err)
		}
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("close code %d, want 4503", code)
		}
		poll.Until(t, "the session is ended", func() bool {
			_, body := i.Call(t, "GET", "/api/v1/sessions/"+session, "X-API-Key", own.Key)
			return containsAll(body, `"state":"ended"`)
		})
	})
}
