package e2e

import (
	"testing"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// A session from token to end: connect, accept, chat in both directions, end.
func TestBrowserAndRuntimeExchangeMessages(t *testing.T) {
	onAllStores(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, env)
		i := harness.Start(t, env)
		tenant := harness.NewTenant(t, i, "tenant")
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`, `"resumed":false`, `"textChat":true`, `"maxMessageBytes":65536`)

		id := b.Chat("hello") // stored and acknowledged before a runtime accepts
		b.Expect(`"event":"ack"`, id)

		ch := harness.Accept(t, harness.StartRuntime(t, env))
		if e := harness.Receive(t, ch); e.Kind != wire.KindSession || e.Event != "connected" {
			t.Errorf("first entry is %+v, want connected", e)
		}
		if e := harness.Receive(t, ch); e.Kind != wire.KindFrame || string(e.Message.Chat) != `{"text":"hello"}` || e.Message.MessageID != id {
			t.Errorf("second entry is %+v, want the chat", e)
		}
		harness.SendChat(t, ch, `{"text":"good day"}`)
		m := b.Expect(`"type":"chat"`, `good day`, `"direction":"to_browser"`, session)
		if m.StreamID == "" || m.MessageID == "" || m.Timestamp == 0 {
			t.Errorf("frame %s, want streamId, messageId and timestamp", m.Raw)
		}
		if err := ch.End(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("close code %d, want 4503", code)
		}
		testkit.Until(t, "the session is ended", func() bool {
			_, body := i.Call(t, "GET", "/api/v1/sessions/"+session, "X-API-Key", tenant.Key)
			return containsAll(body, `"state":"ended"`)
		})
	})
}
