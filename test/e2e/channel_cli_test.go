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
		i := harness.Start(t, env)
		tenant := harness.NewTenant(t, i, "tenant")
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
		resp, receipt := i.Post(t, "/api/"+path, `{"result":"done"}`, "token", later["token"].(string))
		wantStatus(t, resp, receipt, 202, `"parked"`)
		parked := fmt.Sprintf("parked: the answer to work item %s (tool) waits for earlier work items. Open: %s\n", later["workItemId"], earlier["workItemId"])
		if r := telapi(t, env, "channel", "tail", "call-1", "--json"); r.exit != 0 || r.stderr != parked || strings.Contains(r.stdout, "done") {
			t.Errorf("tail with a parked answer: exit %d, stdout %s, stderr %q; want %q", r.exit, r.stdout, r.stderr, parked)
		}
		following := harness.StartProcess(t, env, "channel", "tail", "call-1", "--follow")
		testkit.Until(t, "tail --follow reports the parked answer", func() bool { return following.Stderr.Has(parked) })
		harness.RunJSON(t, env, "channel", "end", "call-1")
		following.WaitForLine(t, "done")

		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
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

		const hint = "when its browser connects"
		for _, c := range []struct {
			exit   int
			args   []string
			stderr string
		}{
			{1, []string{"channel", "tail", "unknown"}, hint},
			{1, []string{"channel", "tail", "unknown", "--follow", "--from", "3"}, hint},
			{1, []string{"channel", "send", "unknown", "--payload", "{}"}, hint},
			{1, []string{"callback", "issue", "--channel", "unknown"}, hint},
			{2, []string{"channel", "send", session, "--payload", "[]"}, `{"text":`},
			{2, []string{"channel", "send", session, "--type", "ping", "--payload", "{}"}, "use chat, "},
			{2, []string{"channel", "open", "a{b}", "--team", tenant.Team.ID, "--endpoint", tenant.Endpoint.ID}, "invalid channel ID"},
			{1, []string{"channel", "open", "call-2", "--team", "tm_other", "--endpoint", tenant.Endpoint.ID}, "another team"},
			{1, []string{"channel", "end", "unknown"}, hint},
			{2, []string{"channel", "tail", session, "--from", "garbage"}, `invalid --from "garbage": use the ID of an entry`},
			{2, []string{"callback", "issue", "--channel", session, "--ttl", "0s"}, `invalid --ttl "0s": use a duration from 1ms to 24h0m0s`},
			{2, []string{"callback", "issue", "--channel", session, "--ttl", "24h1s"}, `invalid --ttl "24h0m1s"`},
			{2, []string{"limits", "set", "--tier", "api", "--max", "-1"}, `invalid --max "-1": must be a number from 1`},
			{2, []string{"team", "create", ""}, `invalid NAME "": the team name is empty`},
			{2, []string{"endpoint", "create", "--team", tenant.Team.ID, "--name", "n", "--mode", "fax"}, "use webrtc, audio or chat"},
			{2, []string{"key", "create", "--team", tenant.Team.ID, "--scope", "FLY"}, `invalid --scope "FLY": use `},
		} {
			if r := telapi(t, env, c.args...); r.exit != c.exit || r.stdout != "" || !strings.Contains(r.stderr, c.stderr) {
				t.Errorf("telapi %v: exit %d, stdout %q, stderr %q; want exit %d and %q in stderr", c.args, r.exit, r.stdout, r.stderr, c.exit, c.stderr)
			}
		}
	})
}
