package harness

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"telapi/test/testkit"
)

// EnvPrograms is the environment variable with the directory of programs that were
// built for the test run.
const EnvPrograms = "TEST_PROGRAMS"

// Binary returns the path of the program under test. It builds it as "make build" does,
// unless it was built for all packages.
var Binary = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(EnvPrograms); dir != "" {
		return filepath.Join(dir, "telapi"), nil
	}
	dir, err := os.MkdirTemp("", "telapi-e2e")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "telapi")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "telapi/cmd/telapi")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// Environ returns the environment of a process: env, defaults for tests, PATH and
// HOME.
func Environ(env Env) []string {
	environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	for name, value := range (Env{"OTEL_ENABLED": "false", "MEDIA_PORT": "0"}) {
		if env[name] == "" {
			environ = append(environ, name+"="+value)
		}
	}
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	return environ
}

// Process is a running program.
type Process struct {
	Cmd    *exec.Cmd
	Stderr *testkit.Buffer

	lines *bufio.Reader
	done  chan struct{}
	state *os.ProcessState
}

// Program is the path of a binary. The empty one is the binary under test.
type Program string

func (program Program) path(t testing.TB) string {
	t.Helper()
	if program != "" {
		return string(program)
	}
	path, err := Binary()
	testkit.Must(t, err)
	return path
}

// StartProcess runs the binary under test until it exits or the test ends.
func StartProcess(t testing.TB, env Env, args ...string) *Process {
	t.Helper()
	return Program("").Start(t, env, args...)
}

// Start runs the program until it exits or the test ends.
func (program Program) Start(t testing.TB, env Env, args ...string) *Process {
	t.Helper()
	p := &Process{Cmd: exec.Command(program.path(t), args...), Stderr: &testkit.Buffer{}, done: make(chan struct{})}
	p.Cmd.Env = Environ(env)
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.Cmd.StdoutPipe()
	testkit.Must(t, err)
	stderr, err := p.Cmd.StderrPipe()
	testkit.Must(t, err)
	p.lines = bufio.NewReader(stdout)
	testkit.Must(t, p.Cmd.Start())
	go func() {
		defer close(p.done)
		_, _ = io.Copy(p.Stderr, stderr) // before Wait, so that no output is lost
		p.state, _ = p.Cmd.Process.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("stderr of telapi %v:\n%s", args, p.Stderr)
		}
	})
	return p
}

// WaitForLine reads stdout up to a line that contains the text and returns it.
func (p *Process) WaitForLine(t testing.TB, text string) string {
	t.Helper()
	for {
		line, err := p.lines.ReadString('\n')
		if strings.Contains(line, text) {
			return strings.TrimSpace(line)
		}
		if errors.Is(err, io.EOF) {
			t.Fatalf("stdout ended without %q\n%s", text, p.Stderr)
		}
		testkit.Must(t, err)
	}
}

// Exited reports whether the process has exited.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// WaitExit waits until the process exits and returns its exit code: -1 if a signal
// ended it.
func (p *Process) WaitExit(t testing.TB) int {
	t.Helper()
	testkit.Until(t, strings.Join(p.Cmd.Args[1:], " ")+" exits", p.Exited)
	return p.state.ExitCode()
}
