package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// elsewhere has the blocks marked `sh` that TestCommandsForDemoWork does not run, by their
// first line, with the test that runs them or the reason why none can.
var elsewhere = map[string]string{
	"PORT=8080 python3 examples/bot-python/": "test/demo runs the bots",
	"SESSION_RETENTION=168h telapi serve":    "TestCommandsInDocsWork starts servers",
	"MEDIA_UPLOAD_TOKEN=… MEDIA_TLS_CERT":    "TestCommandsInDocsWork starts the media service with TLS",
	"SPEECH_PROVIDERS=openai SPEECH_OPENAI":  "needs a speech provider",
	"apt-get install":                        "changes the machine",
	"baresip":                                "test/phone calls the phone",
	"cp deploy/systemd":                      "changes the machine; systemd-analyze checks the units",
	"curl -sN":                               "TestModelIsPipedIntoCallback",
	"curl http://127.0.0.1:5080/calls":       "test/phone calls the phone",
	"export DEMO_STT_URL":                    "needs a speech recognizer and a language model",
	"export JWT_SECRET=…":                    "TestCommandsInDocsWork starts servers",
	"export SPEECH_PROVIDERS":                "needs an account of a speech provider",
	"go doc":                                 "needs the source",
	"go test":                                "is a test",
	"grep -rn Test":                          "is a test",
	"make ":                                  "the Makefile runs the tests",
	"openssl ecparam":                        "TestReleaseIsReproducible builds and verifies a release",
	"runuser":                                "changes the machine",
	"telapi dev":                             "test/demo",
}

// All other blocks of a page that are marked `sh`, and the commands of blocks marked
// `console`, run in one shell while telapi dev is running. Placeholders, such as tm_… and
// CHANNEL, are replaced.
func TestCommandsForDemoWork(t *testing.T) {
	demo := startDemo(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	testkit.Must(t, err)
	used := map[string]bool{}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		script := demoScript(t, page, used)
		if script == "" {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) { demo.run(t, script) })
	}
	for line := range elsewhere {
		if !used[line] {
			t.Errorf("no block starts with %q: remove it from the list of blocks that run elsewhere", line)
		}
	}
}

var codeBlock = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")

// demoScript joins the commands of a page that run with the demo.
func demoScript(t *testing.T, page string, used map[string]bool) string {
	t.Helper()
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	var script strings.Builder
blocks:
	for _, block := range codeBlock.FindAllStringSubmatch(string(text), -1) {
		lang, code := block[1], block[2]
		if lang == "" {
			t.Errorf("%s: a block has no language: %.60s", filepath.Base(page), code)
		}
		for line := range elsewhere {
			if strings.HasPrefix(code, line) {
				used[line] = true
				continue blocks
			}
		}
		switch lang {
		case "sh":
			script.WriteString(code)
		case "console":
			for line := range strings.Lines(code) {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					script.WriteString(command)
				}
			}
		}
	}
	return script.String()
}

// demo is a running telapi dev.
type demo struct {
	dir          string
	env          harness.Env
	placeholders *strings.Replacer
}

func startDemo(t *testing.T) demo {
	t.Helper()
	binary, err := harness.Binary()
	testkit.Must(t, err)
	d := demo{dir: t.TempDir()}
	d.env = harness.Env{
		"PATH": filepath.Dir(binary) + ":" + os.Getenv("PATH"), "DATA_DIR": t.TempDir(), "JWT_SECRET": strings.Repeat("s", 32),
		"DATABASE_URL": testkit.SharedPostgres(t).NewDatabase(t), "REDIS_URL": testkit.StartRedis(t, testkit.RedisDurable()).URL(),
	}
	_, _, out := harness.Dev(t, d.env)
	d.env["KEY"], d.env["METRICS_TOKEN"], d.env["MEDIA_UPLOAD_TOKEN"], d.env["TELAPI_PORT"] = out.Key, "", "", out.URL[strings.LastIndex(out.URL, ":")+1:]

	channel := "call-4711"
	spare := harness.RunJSON(t, d.env, "team", "create", "Spare", "--json")["id"].(string)
	key := harness.RunJSON(t, d.env, "key", "create", "--team", spare, "--scope", "READ_TEAM_APPS", "--json")["id"].(string)
	harness.RunJSON(t, d.env, "channel", "open", channel, "--team", out.TeamID, "--endpoint", out.EndpointID, "--json")
	for _, name := range []string{"CALLBACK_", ""} {
		item := harness.RunJSON(t, d.env, "callback", "issue", "--channel", channel, "--json")
		d.env[name+"TOKEN"], d.env[name+"URL"] = item["token"].(string), out.URL+"/api/v1/webhooks/bot/"+channel
	}
	d.placeholders = strings.NewReplacer(
		"http://localhost:3001", out.URL, "http://127.0.0.1:3001", out.URL, "http://127.0.0.1:3002", out.MediaURL,
		"telapi media &", "", " --follow", "", "bin/telapi", "telapi", "ses_01a1e19d-…", channel, "ses_…", channel, "CHANNEL", channel,
		"--team tm_…", "--team "+out.TeamID, "tm_…", out.TeamID, "ep_…", out.EndpointID, "TEAM ", spare+" ", "KEY_ID", key, "telapi media gc", "TTS_MEDIA_CACHE_BASE_URL="+out.MediaURL+" telapi media gc", "--voice alloy", "--voice en",
		"/886a….alaw", `/$(curl -s "`+out.URL+`/api/v1/runtime/speech" -H "X-API-Key: $KEY" -H 'Content-Type: application/json' -d '{"text":"Good morning"}' | sed 's/.*"hash":"\([^"]*\)".*/\1/').alaw`,
	)

	page := readFile(t, "docs/providers.md")
	_, section, _ := strings.Cut(page, "\n## Test an answer\n")
	files := regexp.MustCompile("(?ms)^```json\n(.*?)^```$").FindAllStringSubmatch(section, 2)
	for name, content := range map[string]string{"profile.json": files[0][1], "answer.json": files[1][1], "prompts.txt": "Good morning\nOne moment\n", "key.txt": out.Key} {
		testkit.Must(t, os.WriteFile(filepath.Join(d.dir, name), []byte(content), 0o600))
	}
	return d
}

func (d demo) run(t *testing.T, script string) {
	t.Helper()
	script = d.placeholders.Replace(script)
	if strings.Contains(script, "…") {
		t.Errorf("the commands have a placeholder without a value:\n%s", script)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", "curl() { command curl --fail-with-body \"$@\"; }\n"+script)
	cmd.Dir, cmd.Env = d.dir, harness.Environ(d.env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the commands ended with %v\n%s", err, out)
	}
}
