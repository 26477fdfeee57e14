package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestCallbackLint(t *testing.T) {
	profile := writeFile(t, "profile.json", "\ufeff"+permissiveProfile)
	body := writeFile(t, "body.json", `{"conversation":{"identifier":{"id":"call-7"}},"messages":{"message":[{"content":{"textMessage":{"textHtml":"<p>Good</p><p>day</p>"}}}]},
		"actions":[{"type":"hangup","commandId":"c1"},{"type":"transfer","target":"tel:+1900"}]}`)
	r := telapi(t, nil, "callback", "lint", body, "--profile", profile, "--json")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.exit != 0 || len(lines) != 3 || r.stderr != "" {
		t.Fatalf("valid body: exit %d, want 0 and 3 lines\n%s%s", r.exit, r.stdout, r.stderr)
	}
	for n, want := range []string{`"text":"Good\nday"`, `"apply":"after_playback"`, `"reason":"target_not_allowed"`} {
		if !json.Valid([]byte(lines[n])) || !containsAll(lines[n], want, `"channelId":"call-7"`, `"source":"bot"`) {
			t.Errorf("line %d is %s, want %s", n, lines[n], want)
		}
	}
	if r := telapi(t, nil, "callback", "lint", body, "--profile", profile); r.stdout != "bot message: Good day\ncommand hangup, after_playback\ntransfer denied: target_not_allowed\n" {
		t.Errorf("text output is %q, want a line for the message and one per command", r.stdout)
	}
	if r := telapi(t, nil, "callback", "lint", body); strings.Count(r.stdout, "source_not_allowed") != 2 {
		t.Errorf("without a profile: %q, want source_not_allowed for both commands", r.stdout)
	}
	if r := telapi(t, harness.Env{"COMMANDS_DISABLED": "hangup"}, "callback", "lint", body, "--profile", profile); !strings.Contains(r.stdout, "hangup denied: platform_disabled") {
		t.Errorf("with COMMANDS_DISABLED=hangup: %q, want hangup denied", r.stdout)
	}
	model := writeFile(t, "model.json", "\ufeff"+`{"content":"Hi","commands":[{"type":"hangup"}]}`)
	telapi(t, nil, "callback", "lint", model, "--kind", "llm", "--profile", profile).expect(t, 0, "LLM result: Hi", "command hangup")
	stream := writeFile(t, "answer.ndjson", delta("Bye. Now")+doneLine)
	telapi(t, nil, "callback", "lint", stream, "--kind", "llm", "--json").expect(t, 0, `"kind":"llm_part"`, `"parts":2`)
	largest := writeFile(t, "largest.json", `"`+strings.Repeat("x", 1<<20-2)+`"`)
	tooLarge := writeFile(t, "large.json", `"`+strings.Repeat("x", 1<<20-1)+`"`)
	for _, row := range []struct {
		args []string
		exit int
	}{
		{[]string{"lint", body, "--channel", "call-8"}, 1},
		{[]string{"lint", largest, "--kind", "tool"}, 0},
		{[]string{"lint", tooLarge, "--kind", "tool"}, 1},
	} {
		if r := telapi(t, nil, append([]string{"callback"}, row.args...)...); r.exit != row.exit {
			t.Errorf("callback %v: exit %d, want %d\n%s", row.args, r.exit, row.exit, r.stderr)
		}
	}
}

func TestEndpointProfileIsLinted(t *testing.T) {
	profile := writeFile(t, "profile.json", `{"commandSources":["bot"],"commandPolicies":[{"type":"transfer","enabled":true,"allowedTarget":["tel:+49*"]}]}`)
	env := harness.Env{"DATA_DIR": t.TempDir()}
	team := harness.RunJSON(t, env, "team", "create", "Shop")["id"].(string)
	create := []string{"endpoint", "create", "--team", team, "--name", "Shop", "--mode", "chat", "--profile", profile, "--json"}
	const warning = `/commandPolicies/0/allowedTarget: "allowedTarget" has no effect. Did you mean "allowedTargets"?`
	telapi(t, env, append(create, "--strict")...).expect(t, 1, warning)
	if r := telapi(t, env, "endpoint", "list", "--json"); strings.Contains(r.stdout, "Shop") {
		t.Errorf("endpoint create --strict created the endpoint: %s", r.stdout)
	}
	if r := telapi(t, env, create...); r.exit != 0 || !json.Valid([]byte(r.stdout)) || !strings.Contains(r.stderr, warning) {
		t.Errorf("endpoint create: exit %d, stdout %q, stderr %q; want exit 0, the endpoint and the warning", r.exit, r.stdout, r.stderr)
	}
}

// The printed URL, token and curl command work without changes.
func TestCallbackIssue(t *testing.T) {
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, env)
		i := harness.Start(t, env)
		c := openCall(t, i, harness.StartRuntime(t, i), "call-1")
		for kind, body := range map[string]string{"bot": c.botMessage("Hello"), "llm": `{"content":"Hello"}`, "tool": `{}`} {
			got := harness.RunJSON(t, env, "callback", "issue", "--channel", "call-1", "--kind", kind, "--scope", "work_item", "--ttl", "10m")
			expires, err := time.Parse(time.RFC3339, got["expiresAt"].(string))
			if err != nil || time.Until(expires) > 10*time.Minute || time.Until(expires) < 5*time.Minute {
				t.Errorf("expiresAt is %v (%v), want in about 10 minutes", got["expiresAt"], err)
			}
			url, local := strings.CutPrefix(got["url"].(string), "http://localhost:3001")
			if !local {
				t.Fatalf("url is %s, want it on localhost:3001", got["url"])
			}
			expectStatus(t, 202, `"accepted"`)(i.Post(t, url, body, "token", got["token"].(string)))
			if e := harness.Receive(t, c.Channel); e.WorkItemID != got["workItemId"] {
				t.Errorf("entry %+v, want work item %v", e, got["workItemId"])
			}
		}
		env["PUBLIC_URL"] = i.URL
		text := telapi(t, env, "callback", "issue", "--channel", "call-1", "--scope", "channel")
		_, line, found := strings.Cut(text.stdout, "\ncurl ")
		if !found || !containsAll(line, i.URL, "token: cbt_", "Content-Type: application/json") {
			t.Errorf("no curl command in: %s%s", text.stdout, text.stderr)
		}
	})
}

func TestInvalidPlatformPolicyPreventsStart(t *testing.T) {
	env := harness.Env{"COMMANDS_DISABLED": "hangup,dance", "TRANSFER_ALLOWED_TARGETS": "tel:+49*,http://x", "TRANSFER_ALLOWED_HEADERS": "maddr,a b", "DATA_DIR": t.TempDir(), "JWT_SECRET": harness.Secret}
	for _, command := range []string{"serve", "doctor"} {
		r := telapi(t, env, command)
		if r.exit != 1 || !containsAll(r.stdout+r.stderr, "COMMANDS_DISABLED", "dance", "TRANSFER_ALLOWED_TARGETS", "http://x", "TRANSFER_ALLOWED_HEADERS", "a b") {
			t.Errorf("telapi %s: exit %d, want 1 and all invalid values in the output\n%s%s", command, r.exit, r.stdout, r.stderr)
		}
	}
}
