package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// A session changes its runtime while the browser talks: first the runtime releases
// its claim, then the next one crashes and its claim expires. Pings are rare, so
// that they cannot be the reason for the offers.
func TestSecondRuntimeTakesOver(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, harness.Merge(env, harness.Env{"SESSION_PING_INTERVAL": "5m"}))
		i := harness.Start(t, env)
		tenant := harness.NewTenant(t, i, "tenant")
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{
			"endpointId": tenant.Endpoint.ID, "mode": "chat", "identity": map[string]any{"name": "Ann"}, "metadata": map[string]any{"order": 4711}})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
		say := func(text string) {
			t.Helper()
			b.Expect(`"event":"ack"`, b.Chat(text))
		}
		expect := func(ch *calls.Channel, texts ...string) {
			t.Helper()
			for _, text := range texts {
				entry := harness.Receive(t, ch)
				if encoded, _ := json.Marshal(entry); !strings.Contains(string(encoded), text) {
					t.Fatalf("received %s, want %q", encoded, text)
				}
			}
		}

		first := harness.Accept(t, harness.StartRuntime(t, env))
		say("one")
		expect(first, "connected", "one")
		if err := first.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		crashing := harness.StartRuntime(t, env)
		second := harness.Accept(t, crashing)
		t.Logf("%s from the release to the next claim", time.Since(released).Round(time.Millisecond))
		say("two")
		expect(second, "two")
		say("three") // not received by the second runtime

		crashing.Close()
		store := harness.StoreClient(t, env)
		setField := func(name, value string) {
			t.Helper()
			if err := store.Do(t.Context(), store.B().Hset().Key(kv.MetaKey(session)).FieldValue().FieldValue(name, value).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		setField("claimUntil", "1") // the lease expires
		say("four")
		expired := time.Now()
		last := harness.StartRuntime(t, env)
		third := harness.Accept(t, last)
		t.Logf("%s from the frame after the expired claim to the next claim", time.Since(expired).Round(time.Millisecond))
		expect(third, "three", "four")
		if o := third.Offer; o == nil || o.Identity.Name != "Ann" || string(o.Metadata) != `{"order":4711}` {
			t.Errorf("offer %+v, want identity and metadata", o)
		}

		if r := telapi(t, env, "channel", "list", "--json"); r.exit != 0 || strings.Count(r.stdout, "\n") != 1 ||
			!strings.Contains(r.stdout, `"id":"`+session+`"`) || !strings.Contains(r.stdout, `"claim":"claimed"`) || !strings.Contains(r.stdout, `"browser":true`) {
			t.Errorf("channel list: exit %d, %s%s; want the claimed session", r.exit, r.stdout, r.stderr)
		}
		if r := telapi(t, env, "channel", "list"); r.exit != 0 || !strings.Contains(r.stdout, "LAST ACTIVITY") || strings.Count(r.stdout, "\n") != 2 {
			t.Errorf("channel list: exit %d, %s%s; want a table with one row", r.exit, r.stdout, r.stderr)
		}
		last.Close()
		setField("claimUntil", "1")
		setField("openedAt", "1")               // long ago
		setField("offeredAt", "99999999999999") // as if all runtimes had rejected the offer
		testkit.Until(t, "the waiting session is in the metrics", func() bool {
			_, metrics := i.Call(t, "GET", "/metrics")
			return strings.Contains(metrics, "\ntelapi_sessions_waiting 1\n") && !strings.Contains(metrics, "\ntelapi_sessions_waiting_seconds 0\n") &&
				strings.Contains(metrics, "\ntelapi_claims_expired_total 1\n") && strings.Contains(metrics, "\ntelapi_offers_total ")
		})
		if r := telapi(t, env, "doctor"); !strings.Contains(r.stdout, "channels: 1, claimed: 0, expired claims: 1; offers: 0") || !strings.Contains(r.stdout, "sessions that wait for a runtime: 1, the oldest for ") {
			t.Errorf("doctor: %s%s; want the waiting session", r.stdout, r.stderr)
		}
	})
}
