package e2e

import (
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// telapi dev prints a URL, an API key and commands that work when pasted.
func TestDevPrintsWorkingCurlCommand(t *testing.T) {
	testkit.Curl(t)
	env := harness.Env{"TELAPI_PORT": "0", "DATA_DIR": filepath.Join(t.TempDir(), "it's mine")}
	p := harness.StartProcess(t, env, "dev")
	url := strings.Fields(p.WaitForLine(t, "API "))[1]
	key := strings.Fields(p.WaitForLine(t, "Demo key "))[2]
	media := strings.Fields(p.WaitForLine(t, "Media "))[1]
	_, line, _ := strings.Cut(p.WaitForLine(t, "curl "), "Try")
	if !strings.Contains(line, url) || !strings.Contains(line, key) {
		t.Errorf("curl command %q, want %s and %s in it", line, url, key)
	}
	out, err := exec.Command("sh", "-c", strings.TrimSpace(line)+" --silent --show-error --fail").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Demo endpoint") {
		t.Errorf("%s: %v, want the demo endpoint in the output\n%s", line, err, out)
	}
	_, line, _ = strings.Cut(p.WaitForLine(t, "Then "), "Then")
	out, err = exec.Command("sh", "-c", strings.Replace(line, "--help", "health", 1)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"version"`) {
		t.Errorf("%s: %v, want the version in the output\n%s", line, err, out)
	}
	testkit.Until(t, "the API server reaches the media service", func() bool {
		out, _ := exec.Command("curl", "--silent", url+"/health").Output()
		return strings.Contains(string(out), `"media":"ok"`)
	})
	out, err = exec.Command("sh", "-c", strings.Replace(line, "--help", "doctor", 1)).CombinedOutput()
	for _, want := range []string{
		"ok    configuration    valid for telapi dev", "ok    jwt secret", "ok    server           " + strings.Replace(url, "localhost", "127.0.0.1", 1) + ", version ", "ok    database         SQLite at ",
		"ok    key-value store  embedded in the server", "ok    media service    part of telapi dev: ok", "ok    speech", "warn  ice servers      not configured", "Failed: 0.",
	} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("doctor beside telapi dev: %v, want %q in the output\n%s", err, want, out)
		}
	}
	out, err = exec.Command("curl", "--silent", "--fail", "-T", "dev_test.go", media+"/media/ab/x.pcm", "--next", "--silent", media+"/media").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"path":"ab/x.pcm"`) {
		t.Errorf("media service at %s: %v %s, want ab/x.pcm in its list", media, err, out)
	}
	if p.Stderr.Has(key) {
		t.Error("the log contains the API key")
	}

	t.Run("restart keeps the API key", func(t *testing.T) {
		_ = p.Cmd.Process.Signal(syscall.SIGTERM)
		p.WaitExit(t)
		again := harness.StartProcess(t, env, "dev", "--json")
		var output struct{ Key string }
		if err := json.Unmarshal([]byte(again.WaitForLine(t, "{")), &output); err != nil || output.Key != key {
			t.Errorf("key is %q (%v), want %q as before", output.Key, err, key)
		}
	})
}

func TestListenAddress(t *testing.T) {
	accepts := func(host, port string) bool {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}
	check := func(port string, want1, want2 bool) {
		t.Helper()
		if got1, got2 := accepts("127.0.0.1", port), accepts("127.0.0.2", port); got1 != want1 || got2 != want2 {
			t.Errorf("listens on 127.0.0.1: %v, on 127.0.0.2: %v; want %v and %v", got1, got2, want1, want2)
		}
	}
	dev := func(env harness.Env) (url, port string) {
		t.Helper()
		p := harness.StartProcess(t, harness.Merge(harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}, env), "dev", "--no-demo")
		url = strings.Fields(p.WaitForLine(t, "API "))[1]
		return url, url[strings.LastIndex(url, ":")+1:]
	}
	_, port := dev(nil)
	check(port, true, false)
	url, port := dev(harness.Env{"TELAPI_HOST": "127.0.0.2"})
	check(port, false, true)
	if want := "http://127.0.0.2:" + port; url != want {
		t.Errorf("telapi dev prints %s, want %s", url, want)
	}
	if r := telapi(t, harness.Env{"TELAPI_HOST": "127.0.0.2", "TELAPI_PORT": port}, "health"); r.exit != 0 {
		t.Errorf("telapi health: exit %d, %s", r.exit, r.stderr)
	}
	instance, _ := harness.Serve(t, nil)
	check(instance.URL[strings.LastIndex(instance.URL, ":")+1:], true, true)

	r := telapi(t, harness.Env{"TELAPI_HOST": "192.0.2.1", "DATA_DIR": t.TempDir()}, "dev")
	if r.exit != 1 || !strings.Contains(r.stderr, "TELAPI_HOST=192.0.2.1") {
		t.Errorf("an address of another machine: exit %d, %s; want 1 and the setting", r.exit, r.stderr)
	}
}

func TestDevPrintsBotAndCommandThatStartsOne(t *testing.T) {
	const bot = "http://127.0.0.1:8099/"
	p := harness.StartProcess(t, harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}, "dev", "--bot", bot)
	url := strings.Fields(p.WaitForLine(t, "API "))[1]
	if line := p.WaitForLine(t, "Your bot "); !strings.HasSuffix(line, bot) {
		t.Errorf("banner %q, want the URL of the bot", line)
	}
	if line, want := p.WaitForLine(t, "Start one "), "TELAPI_URL="+url+" PORT=8099 node examples/bot-node/bot.mjs"; !strings.HasSuffix(line, want) {
		t.Errorf("banner %q, want the command %s", line, want)
	}
}

func TestDevPrintsWhatToDoNext(t *testing.T) {
	p := harness.StartProcess(t, harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}, "dev")
	p.WaitForLine(t, "Open the playground, press Chat and say:")
	p = harness.StartProcess(t, harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}, "dev", "--no-demo")
	url := strings.Fields(p.WaitForLine(t, "API "))[1]
	key := strings.Fields(p.WaitForLine(t, "Demo key "))[2]
	if line, want := p.WaitForLine(t, "Start one "), "TELAPI_URL="+url+" TELAPI_KEY="+key+" go -C examples/runtime-go run ./echo"; !strings.HasSuffix(line, want) {
		t.Errorf("banner %q, want the command %s", line, want)
	}
}

func TestDevWithoutAPIAccessStartsNoRuntime(t *testing.T) {
	p := harness.StartProcess(t, harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir(), "FEATURE_API_ACCESS": "false"}, "dev")
	url := strings.Fields(p.WaitForLine(t, "API "))[1]
	if line := p.WaitForLine(t, "Try "); !strings.HasSuffix(line, " "+url+"/health") {
		t.Fatalf("banner %q, want a route that exists", line)
	}
	p.WaitForLine(t, "Runtime    none")
}
