package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// All blocks of a page that are marked `sh run` run in one shell, with an empty
// PostgreSQL and an empty Redis. As in a release archive, deploy is in the working
// directory. The binary is on the PATH.
func TestCommandsInDocsWork(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	testkit.Must(t, err)
	pagesRun := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		script := runnableScript(t, page)
		if script == "" {
			continue
		}
		pagesRun++
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			runScript(t, script)
		})
	}
	if pagesRun == 0 {
		t.Error("no page has a block marked `sh run`")
	}
}

// runnableScript joins the blocks of a page that are marked `sh run`. Each block prints its line number.
func runnableScript(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	var script strings.Builder
	inside := false
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		switch {
		case strings.TrimSpace(line) == "```sh run":
			inside = true
			fmt.Fprintf(&script, "echo '== line %d' >&2\n", number)
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside:
			script.WriteString(line)
		}
	}
	return script.String()
}

func runScript(t *testing.T, script string) {
	t.Helper()
	binary, err := harness.Binary()
	testkit.Must(t, err)
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "cp", "-r", filepath.Join(root, "deploy"), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// Processes that a page starts end with its shell, and the shell with the test.
	script = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + script + "\necho '== done' >&2\n"
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(harness.Environ(harness.Env{
		"PATH":         filepath.Dir(binary) + ":" + os.Getenv("PATH") + ":/usr/sbin",
		"DATABASE_URL": testkit.SharedPostgres(t).NewDatabase(t),
		"REDIS_URL":    testkit.StartRedis(t, testkit.RedisDurable()).URL(),
		"DRAIN_DELAY":  "1s",
	}), ports(t)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	log := &testkit.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	testkit.Must(t, cmd.Start())
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	if state, err := cmd.Process.Wait(); err != nil || !state.Success() {
		t.Fatalf("the commands ended with %v (%v), want exit code 0\n%s", state, err, log)
	}
	// The last output may still be in the pipe.
	testkit.Until(t, "the script reaches its last line", func() bool { return log.Has("== done") })
}

// ports returns free ports, because pages run in parallel.
func ports(t *testing.T) (env []string) {
	for _, name := range []string{"PORT_1", "PORT_2", "PORT_MEDIA", "PORT_PUBLIC"} {
		env = append(env, fmt.Sprintf("%s=%d", name, testkit.FreePort(t)))
	}
	return env
}
