package e2e

import (
	"strings"
	"testing"

	"telapi/internal/kv"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// The command line, metrics and doctor show whether a session has a runtime.
func TestClaimedAndWaitingSessionsAreReported(t *testing.T) {
	t.Parallel()
	env := harness.WithDataDir(t, harness.Env{"SESSION_PING_INTERVAL": "5m"})
	i, tenant := startTenant(t, env)
	b, _ := tenant.Connect(t, i, "identity", map[string]any{"name": "Ann"}, "metadata", map[string]any{"order": 4711})
	session := b.Session
	last := harness.StartRuntime(t, i)
	claimed := harness.Accept(t, last)
	if o := claimed.Session; o == nil || o.Identity.Name != "Ann" || string(o.Metadata) != `{"order":4711}` {
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
	testkit.Until(t, "the waiting session is in the metrics", func() bool {
		_, metrics := i.Call(t, "GET", "/metrics")
		return strings.Contains(metrics, "\ntelapi_sessions_waiting 1\n") && !strings.Contains(metrics, "\ntelapi_sessions_waiting_seconds 0\n") &&
			strings.Contains(metrics, "\ntelapi_offers_total ")
	})
	store := harness.StoreClient(t, env)
	longAgo := store.B().Hset().Key(kv.MetaKey(session)).FieldValue().FieldValue("openedAt", "1").FieldValue("claimUntil", "1").Build()
	testkit.Must(t, store.Do(t.Context(), longAgo).Error())
	testkit.Until(t, "doctor shows the waiting session and its offer", func() bool {
		return containsAll(telapi(t, env, "doctor").stdout, "channels: 1, claimed: 0, expired claims: 0; offers: 1", "sessions that wait for a runtime: 1, the oldest for ")
	})
}
