package libraries

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// buildExample returns the path of a program of examples/runtime-go.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "-C", "../../examples/runtime-go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// startExample runs a program of examples/runtime-go.
func startExample(t *testing.T, name string, env harness.Env) (*harness.Instance, harness.Tenant) {
	t.Helper()
	program := buildExample(t, name)
	i := harness.Start(t, harness.Env{})
	tenant := harness.NewTenant(t, i, "examples")
	tenant.Endpoint = harness.NewEndpoint(t, i, team.Endpoint{
		TeamID: tenant.Team.ID, Name: name, Modes: team.Modes,
		Profile: wire.GatewayProfile{CommandSources: []string{wire.SourceBot}, CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}}},
	})
	_, key := harness.NewKey(t, i, tenant.Team.ID, auth.RunCalls)
	cmd := exec.Command(program)
	cmd.Env = harness.Environ(harness.Merge(harness.Env{"TELAPI_URL": i.URL, "TELAPI_KEY": key}, env))
	testkit.StartProgram(t, cmd, func(string) bool { return true })
	return i, tenant
}

func TestEchoExample(t *testing.T) {
	i, tenant := startExample(t, "echo", nil)
	c := newCaller(t, i, tenant)
	c.say("hello")
	c.waitFor("hello")
}

func TestBotExample(t *testing.T) {
	bot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var work struct {
			ChannelID, Text string
			Callback        struct{ URL, Token string }
		}
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &work); err != nil {
			t.Errorf("the bot received %s", body)
		}
		if work.Text == "are you there?" {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		actions := `[]`
		if work.Text == "goodbye" {
			actions = `[{"type":"hangup","reason":"done"}]`
		}
		item := fmt.Sprintf(`{"workItemId":"bot","token":%q,"url":%q}`, work.Callback.Token, work.Callback.URL)
		result := fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"timestamp":"2026-01-01T00:00:00Z","message":[{"messageId":1,"content":{"textMessage":{"textPlain":"You said %s"}}}]},"actions":%s}`,
			work.ChannelID, work.Text, actions)
		testkit.Equal(t, "callback", answer(t, item, result), http.StatusAccepted)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(bot.Close)
	i, tenant := startExample(t, "bot", harness.Env{"BOT_URL": bot.URL})
	c := newCaller(t, i, tenant)
	c.say("hello")
	c.waitFor("You said hello")
	c.say("are you there?")
	c.waitFor("The bot is not available.")
	c.say("goodbye")
	testkit.Until(t, "the session ends", c.hasEnded)
	want := []string{"You said hello", "The bot is not available.", "You said goodbye", "The bot has ended the conversation."}
	if got := c.texts(); !slices.Equal(got, want) {
		t.Errorf("the browser received %q, want %q", got, want)
	}
}

func TestExamplesReportRejectedKey(t *testing.T) {
	i := harness.Start(t, harness.Env{})
	python := func(name string) *exec.Cmd {
		return exec.Command(testkit.Python(t), "../../examples/runtime-python/"+name)
	}
	for name, cmd := range map[string]*exec.Cmd{
		"go echo": exec.Command(buildExample(t, "echo")), "go bot": exec.Command(buildExample(t, "bot")),
		"python echo": python("echo.py"), "python bot": python("bot.py"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Env = harness.Environ(harness.Env{
				"TELAPI_URL": i.URL, "TELAPI_KEY": "tk_wrong", "BOT_URL": "http://127.0.0.1:1/", "PYTHONPATH": "../../sdk/python", "PYTHONDONTWRITEBYTECODE": "1",
			})
			out, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if cmd.ProcessState.ExitCode() != 1 || len(lines) != 2 || !strings.Contains(lines[0], "connecting to "+i.URL) || !strings.Contains(lines[1], "key") {
				t.Errorf("%v, output\n%s\nwant exit code 1, the URL and one line about the key", err, out)
			}
			again := exec.Command(cmd.Path, cmd.Args[1:]...)
			again.Env = append(cmd.Env, "TELAPI_KEY=")
			out, err = again.CombinedOutput()
			if again.ProcessState.ExitCode() != 1 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "TELAPI_KEY") {
				t.Errorf("without a key: %v, output\n%s\nwant exit code 1 and one line that names TELAPI_KEY", err, out)
			}
		})
	}
}
