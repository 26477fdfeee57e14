package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
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

// Without the API, /health does not depend on the database; the demo does. Here
// another process migrates the database while the server starts.
func TestDevStartsWithAPIAccessDisabled(t *testing.T) {
	dir := t.TempDir()
	migration, err := os.Create(filepath.Join(dir, "migrate.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = migration.Close() }()
	if err := syscall.Flock(int(migration.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := harness.StartProcess(t, harness.Env{"TELAPI_PORT": "0", "DATA_DIR": dir, "FEATURE_API_ACCESS": "false"}, "dev")
	listening := regexp.MustCompile(`"msg":"telapi is listening".*"url":"([^"]+)"`)
	testkit.Until(t, "the server is healthy", func() bool {
		found := listening.FindStringSubmatch(p.Stderr.String())
		if found == nil {
			return p.Exited()
		}
		resp, err := http.Get(found[1] + "/health")
		if err != nil {
			return p.Exited()
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err := migration.Close(); err != nil {
		t.Fatal(err)
	}
	p.WaitForLine(t, "Demo key")
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

func TestPortInUseIsReported(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	r := telapi(t, harness.Env{"TELAPI_PORT": fmt.Sprint(port), "DATA_DIR": t.TempDir()}, "dev")
	if r.exit != 1 || !strings.Contains(r.stderr, fmt.Sprintf("port %d is in use", port)) || !strings.Contains(r.stderr, "TELAPI_PORT") {
		t.Errorf("exit %d, stderr %s; want exit 1, the port and its setting", r.exit, r.stderr)
	}
}

func TestDataDirIsLockedByRunningServer(t *testing.T) {
	env := harness.Env{"TELAPI_PORT": "0", "DATA_DIR": t.TempDir()}
	p := harness.StartProcess(t, env, "dev")
	p.WaitForLine(t, "Demo key")
	r := telapi(t, env, "dev")
	if r.exit != 1 || !strings.Contains(r.stderr, env["DATA_DIR"]) {
		t.Errorf("exit %d, stderr %s; want exit 1 and %s in it", r.exit, r.stderr, env["DATA_DIR"])
	}
}
