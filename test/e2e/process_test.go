package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"telapi/test/boot"
)

// binary builds the program once per run of the tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "telapi-e2e")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "telapi")
	out, err := exec.Command("go", "build", "-o", path, "telapi/cmd/telapi").CombinedOutput()
	if err != nil {
		return "", &buildError{err, out}
	}
	return path, nil
})

type buildError struct {
	err error
	out []byte
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + string(e.out) }

// run is one finished command line.
type run struct {
	stdout, stderr string
	exit           int
}

func environ(env boot.Env) []string {
	list := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "OTEL_ENABLED=false"}
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// telapi runs the program to its end.
func telapi(t *testing.T, env boot.Env, args ...string) run {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = environ(env)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return run{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// telapiJSON runs a command that must succeed and reads the one object it prints.
func telapiJSON(t *testing.T, env boot.Env, args ...string) map[string]any {
	t.Helper()
	r := telapi(t, env, append(args, "--json")...)
	if r.exit != 0 {
		t.Fatalf("telapi %v: exit %d\n%s", args, r.exit, r.stderr)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("telapi %v: stdout is not one JSON object: %v\n%s", args, err, r.stdout)
	}
	return v
}

// process is a running server.
type process struct {
	cmd    *exec.Cmd
	lines  *bufio.Reader
	stderr *boot.Log
	done   chan struct{}
}

func startProcess(t *testing.T, env boot.Env, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(path, args...), stderr: &boot.Log{}, done: make(chan struct{})}
	p.cmd.Env = environ(env)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = p.cmd.Process.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("stderr of telapi %v:\n%s", args, p.stderr)
		}
	})
	return p
}

// line reads stdout up to the line that holds the text.
func (p *process) line(t *testing.T, text string) string {
	t.Helper()
	for {
		line, err := p.lines.ReadString('\n')
		if strings.Contains(line, text) {
			return strings.TrimSpace(line)
		}
		if err == io.EOF {
			t.Fatalf("stdout ended without %q\n%s", text, p.stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (p *process) ended(within time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(within):
		return false
	}
}
