package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"telapi/test/boot"
	"telapi/test/talk"
)

// What an operator can do with a conversation: open one, watch it, speak in it
// and end it, with output for people and for programs.
func TestChannelCommands(t *testing.T) {
	for name, env := range map[string]boot.Env{"embedded": {}, "postgres and redis": realStores(t)} {
		t.Run(name, func(t *testing.T) {
			env := talk.WithDataDir(t, env)
			i := boot.Start(t, env)
			own := newTenant(t, i, "own")
			opened := telapiJSON(t, env, "channel", "open", "call-1", "--team", own.team.ID, "--endpoint", own.endpoint.ID)
			if opened["id"] != "call-1" {
				t.Errorf("opened %v", opened)
			}

			session, token := talk.Issue(t, i, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
			b := talk.Connect(t, i, session, token, "")
			b.Expect(`"event":"ready"`)
			telapiJSON(t, env, "channel", "send", session, "--type", "chat", "--payload", `{"text":"from the operator"}`)
			b.Expect("from the operator", `"streamId"`)
			id := b.Chat("to the operator")
			b.Expect(`"event":"ack"`, id)

			tail := telapi(t, env, "channel", "tail", session, "--json")
			lines := strings.Split(strings.TrimSpace(tail.stdout), "\n")
			if tail.exit != 0 || len(lines) != 2 {
				t.Fatalf("tail: exit %d\n%s%s", tail.exit, tail.stdout, tail.stderr)
			}
			var frame struct{ ID, Kind, ChannelID string }
			if err := json.Unmarshal([]byte(lines[1]), &frame); err != nil || frame.ID == "" || frame.Kind != "frame" || frame.ChannelID != session {
				t.Errorf("second entry %s (%v)", lines[1], err)
			}
			if from := telapi(t, env, "channel", "tail", session, "--from", frame.ID, "--json"); strings.TrimSpace(from.stdout) != lines[1] {
				t.Errorf("tail --from prints %s", from.stdout)
			}

			p := boot.StartProcess(t, env, "channel", "tail", session, "--follow")
			p.Line(t, "to the operator")
			later := boot.StartProcess(t, env, "channel", "tail", session, "--follow", "--json", "--from", "3")
			telapiJSON(t, env, "channel", "end", session)
			p.Line(t, "ended: ended by an operator")
			if line := later.Line(t, `"id":`); !strings.Contains(line, `"kind":"channel_ended"`) {
				t.Errorf("tail --follow from what is to come begins with %s", line)
			}
			if r := telapi(t, env, "channel", "tail", session, "--follow"); r.exit != 0 || strings.Count(r.stdout, "\n") != 3 {
				t.Errorf("tail --follow of a channel that has ended: exit %d, %q, %q", r.exit, r.stdout, r.stderr)
			}
			if code := b.CloseCode(); code != 4503 {
				t.Errorf("closed with %d", code)
			}

			const begins = "when its browser connects"
			if r := telapi(t, env, "channel", "tail", "nowhere"); r.exit != 0 || r.stdout != "" || !strings.Contains(r.stderr, begins) {
				t.Errorf("tail of nothing: exit %d, %q, %q", r.exit, r.stdout, r.stderr)
			}
			for _, c := range []struct {
				wrong  []string
				stderr string
			}{
				{[]string{"channel", "send", "nowhere", "--payload", "{}"}, begins},
				{[]string{"channel", "send", session, "--payload", "[]"}, `{"text":`},
				{[]string{"channel", "send", session, "--type", "ping", "--payload", "{}"}, "use chat, "},
				{[]string{"channel", "open", "a{b}", "--team", own.team.ID, "--endpoint", own.endpoint.ID}, "no channel id"},
				{[]string{"channel", "open", "call-2", "--team", "tm_other", "--endpoint", own.endpoint.ID}, "another team"},
				{[]string{"channel", "end", "nowhere"}, begins},
			} {
				if r := telapi(t, env, c.wrong...); r.exit != 1 || r.stdout != "" || !strings.Contains(r.stderr, c.stderr) {
					t.Errorf("telapi %v: exit %d, %q, %q", c.wrong, r.exit, r.stdout, r.stderr)
				}
			}
		})
	}
}
