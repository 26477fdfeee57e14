package runtimecontract

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"telapi/callruntime/wire"
	"telapi/internal/endpoint"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

const maxExampleLines = 300

// The runtime in examples/runtime-python and the bot in examples/bot-python serve a
// browser, as the Redis user of the page. The runtime is killed and started again in
// the middle of the conversation: each question has one answer.
func TestPythonRuntime(t *testing.T) {
	t.Parallel()
	python := servers.PythonWithRedis(t)
	redis := startRestrictedRedis(t)
	port := servers.FreePort(t)
	api := fmt.Sprintf("http://localhost:%d", port)
	i := boot.Start(t, boot.Env{"REDIS_URL": redis.URL(), "TELAPI_PORT": fmt.Sprint(port)})
	tenant := boot.NewTenant(t, i, "tenant")
	line := boot.NewEndpoint(t, i, endpoint.Endpoint{TeamID: tenant.Team.ID, Name: "line", Modes: endpoint.Modes, Profile: wire.GatewayProfile{
		CommandSources: []string{"bot"}, CommandPolicies: []wire.CommandPolicy{{Type: "hangup", Enabled: true}},
	}})

	bot := exec.Command(python, "../../examples/bot-python/bot.py")
	bot.Env = append(os.Environ(), "PORT=0", "TELAPI_URL="+api)
	listens := regexp.MustCompile(`bot listens on (\S+)\n`)
	botOutput := servers.StartProgram(t, bot, listens.MatchString)
	start := func() (*exec.Cmd, func() string) {
		cmd := exec.Command(python, "../../examples/runtime-python/runtime.py")
		cmd.Env = append(os.Environ(), "REDIS_URL=redis://runtime:"+aclPassword+"@"+redis.Addr(), "TELAPI_URL="+api,
			"BOT_URL="+listens.FindStringSubmatch(botOutput())[1], "RUNTIME_SECRET=secret", "PYTHONDONTWRITEBYTECODE=1")
		return cmd, servers.StartProgram(t, cmd, func(output string) bool { return strings.Contains(output, "ready\n") })
	}
	first, firstOutput := start()

	session, token := talk.Issue(t, i, tenant.Key, map[string]any{"endpointId": line.ID, "mode": "chat", "identity": map[string]any{"name": "Ann"}})
	b := talk.Connect(t, i, session, token, "")
	b.Expect(`"event":"ready"`)
	var chats []string
	hear := func(text string) {
		t.Helper()
		for {
			m := b.Next()
			if m.Type == wire.TypeChat {
				chats = append(chats, strings.ReplaceAll(string(m.Chat), `": "`, `":"`))
			}
			if strings.Contains(m.Raw, text) {
				return
			}
		}
	}
	b.Chat("one")
	hear("You said: one")
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.Chat("two")
	second, secondOutput := start()
	hear("You said: two")
	if output := secondOutput(); !strings.Contains(output, session+": from ") || !strings.Contains(output, "Ann") {
		t.Errorf("the restarted runtime printed %q, want that it continues the session of Ann", output)
	}
	b.Chat("goodbye")
	hear("Goodbye.")
	if code := b.CloseCode(); code != 4503 {
		t.Errorf("close code %d, want 4503 after the hangup", code)
	}
	if got := strings.Join(chats, " "); got != `{"text":"You said: one"} {"text":"You said: two"} {"text":"Goodbye."}` {
		t.Errorf("the browser received %s, want each answer once", got)
	}
	console := dial(t, redis.Addr(), "default", "")
	poll.Until(t, "the ended channel is committed and dropped from the list", func() bool {
		return console.do("EXISTS", "telapi:runtime:runtime-python").(int64) == 0
	})
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Logf("runtimes:\n%s%s", firstOutput(), secondOutput())
}

func TestPythonRuntimeIsShort(t *testing.T) {
	files, err := filepath.Glob("../../examples/runtime-python/*.py")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	lines := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(text), "\n")
	}
	if lines > maxExampleLines {
		t.Errorf("examples/runtime-python has %d lines, want at most %d", lines, maxExampleLines)
	}
}
