package libraries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// goProgram returns the path of the program in Go. It builds it unless it was built for all packages.
var goProgram = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(harness.EnvPrograms); dir != "" {
		return filepath.Join(dir, "echo"), nil
	}
	program := filepath.Join(testkit.Lasting{TB: testkit.Console{}}.TempDir(), "runtime")
	out, err := exec.Command("go", "build", "-o", program, "telapi/test/echo").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return program, nil
})

// languages are those of the libraries. Each function returns the command that runs a
// program of its language.
var languages = map[string]func(t *testing.T, program string) *exec.Cmd{
	"go": func(t *testing.T, _ string) *exec.Cmd {
		program, err := goProgram()
		testkit.Must(t, err)
		return exec.Command(program)
	},
	"python": func(t *testing.T, program string) *exec.Cmd {
		cmd := exec.Command(testkit.Python(t), "testdata/python/"+program+".py")
		library, _ := filepath.Abs("../../sdk/python")
		cmd.Env = []string{"PYTHONPATH=" + library, "PYTHONDONTWRITEBYTECODE=1"}
		return cmd
	},
	"node": func(t *testing.T, program string) *exec.Cmd {
		for _, needed := range []string{"dist/esm/runtime.js", "node_modules/ws"} {
			if _, err := os.Stat("../../sdk/js/" + needed); err != nil {
				testkit.Missing(t, "sdk/js is not built: run npm ci and npm run build in it")
			}
		}
		return exec.Command(testkit.Node(t), "testdata/node/"+program+".mjs")
	},
}

// program is a process of the runtime under test.
type program struct {
	cmd    *exec.Cmd
	stdout testkit.Buffer
	done   chan struct{}
	stops  bool // it has to exit
}

// startProgram runs the program of a language until the test ends or it is killed.
func startProgram(t *testing.T, language string, env harness.Env) *program {
	t.Helper()
	cmd := languages[language](t, "runtime")
	s := &program{cmd: cmd, done: make(chan struct{})}
	var stderr testkit.Buffer
	cmd.Env = append(cmd.Env, harness.Environ(env)...)
	cmd.Stdout, cmd.Stderr = &s.stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.Must(t, cmd.Start())
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		select {
		case <-s.done:
			if !s.stops && cmd.ProcessState.Exited() {
				t.Errorf("the runtime has exited: %v", cmd.ProcessState)
			}
		default:
			s.kill()
		}
		if t.Failed() {
			t.Logf("stderr of the runtime:\n%s", stderr.String())
		}
	})
	return s
}

// kill ends the process with SIGKILL.
func (s *program) kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// stop ends the process with SIGTERM.
func (s *program) stop(t *testing.T) {
	t.Helper()
	s.stops = true
	testkit.Must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-s.done:
	case <-time.After(testkit.Timeout):
		t.Fatal("the runtime does not stop")
	}
	if !s.cmd.ProcessState.Success() {
		t.Errorf("the runtime has stopped: %v", s.cmd.ProcessState)
	}
}

// printed is an entry that the runtime has received.
type printed struct {
	channel  string
	number   int64
	position string
	kind     wire.EntryKind
	text     string
}

// entries returns the entries that the process has received up to now.
func (s *program) entries(t *testing.T) (list []printed) {
	t.Helper()
	output := s.stdout.String()
	for line := range strings.Lines(output[:strings.LastIndex(output, "\n")+1]) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 5)
		if len(f) < 4 || f[0] != "entry" {
			t.Errorf("the runtime printed %q", line)
			continue
		}
		p := printed{channel: f[1], number: wire.EntryNumber(f[2]), position: f[2], kind: wire.EntryKind(f[3])}
		if len(f) == 5 {
			p.text = f[4]
		}
		list = append(list, p)
	}
	return list
}

// checkOrder checks that the process has received the entries of each channel once and
// in order, without gaps.
func (s *program) checkOrder(t *testing.T) {
	t.Helper()
	newest := map[string]int64{}
	for _, p := range s.entries(t) {
		if before, seen := newest[p.channel]; seen && p.number != before+1 {
			t.Errorf("channel %s: the runtime received entry %s after %d", p.channel, p.position, before)
		}
		newest[p.channel] = p.number
	}
}
