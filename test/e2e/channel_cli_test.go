package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"telapi/internal/kv"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// An operator opens, tails, sends to and ends channels, with text and JSON output.
func TestChannelCommands(t *testing.T) {
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, env)
		i, tenant := startTenant(t, env)
		opened := harness.RunJSON(t, env, "channel", "open", "call-1", "--team", tenant.Team.ID, "--endpoint", tenant.Endpoint.ID)
		if opened["id"] != "call-1" {
			t.Errorf("channel open printed %v, want id call-1", opened)
		}

		harness.RunJSON(t, env, "callback", "issue", "--channel", "call-1", "--ttl", "1ms")
		testkit.Until(t, "a timeout in the output of tail", func() bool {
			return strings.Contains(telapi(t, env, "channel", "tail", "call-1", "--json").stdout, `"kind":"timeout"`)
		})

		earlier := harness.RunJSON(t, env, "callback", "issue", "--channel", "call-1")
		later := harness.RunJSON(t, env, "callback", "issue", "--channel", "call-1", "--kind", "tool")
		_, path, _ := strings.Cut(later["url"].(string), "/api/")
		expectStatus(t, 202, `"parked"`)(i.Post(t, "/api/"+path, `{"result":"done"}`, "token", later["token"].(string)))
		parked := fmt.Sprintf("parked: the answer to work item %s (tool) waits for earlier work items. Open: %s\n", later["workItemId"], earlier["workItemId"])
		if r := telapi(t, env, "channel", "tail", "call-1", "--json"); r.exit != 0 || r.stderr != parked || strings.Contains(r.stdout, "done") {
			t.Errorf("tail with a parked answer: exit %d, stdout %s, stderr %q; want %q", r.exit, r.stdout, r.stderr, parked)
		}
		following := harness.StartProcess(t, env, "channel", "tail", "call-1", "--follow")
		testkit.Until(t, "tail --follow reports the parked answer", func() bool { return following.Stderr.Has(parked) })
		harness.RunJSON(t, env, "channel", "end", "call-1")
		following.WaitForLine(t, "done")

		session, b := openSession(t, i, tenant)
		harness.RunJSON(t, env, "channel", "send", session, "--type", "chat", "--payload", `{"text":"from the operator"}`)
		b.Expect("from the operator", `"streamId"`)
		id := b.Chat("to the operator")
		b.Expect(`"event":"ack"`, id)

		tail := telapi(t, env, "channel", "tail", session, "--json")
		lines := strings.Split(strings.TrimSpace(tail.stdout), "\n")
		if tail.exit != 0 || len(lines) != 2 {
			t.Fatalf("tail: exit %d, want 0 and 2 lines\n%s%s", tail.exit, tail.stdout, tail.stderr)
		}
		var frame struct{ ID, Kind, ChannelID string }
		if err := json.Unmarshal([]byte(lines[1]), &frame); err != nil || frame.ID == "" || frame.Kind != "frame" || frame.ChannelID != session {
			t.Errorf("second entry is %s (%v), want a frame of session %s", lines[1], err, session)
		}
		if from := telapi(t, env, "channel", "tail", session, "--from", frame.ID, "--json"); strings.TrimSpace(from.stdout) != lines[1] {
			t.Errorf("tail --from prints %s, want %s", from.stdout, lines[1])
		}

		follow := harness.StartProcess(t, env, "channel", "tail", session, "--follow")
		follow.WaitForLine(t, "to the operator")
		followFrom3 := harness.StartProcess(t, env, "channel", "tail", session, "--follow", "--json", "--from", "3")
		harness.RunJSON(t, env, "channel", "end", session)
		follow.WaitForLine(t, "ended: ended by an operator")
		if line := followFrom3.WaitForLine(t, `"id":`); !strings.Contains(line, `"kind":"channel_ended"`) {
			t.Errorf("tail --follow --from 3 starts with %s, want channel_ended", line)
		}
		if r := telapi(t, env, "channel", "tail", session, "--follow"); r.exit != 0 || strings.Count(r.stdout, "\n") != 3 {
			t.Errorf("tail --follow of an ended channel: exit %d, want 0 and 3 lines\n%s%s", r.exit, r.stdout, r.stderr)
		}
		testkit.Equal(t, "close code", b.CloseCode(), 4503)

	})
}

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
