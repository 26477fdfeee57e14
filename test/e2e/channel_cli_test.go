package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("close code %d, want 4503", code)
		}

	})
}
