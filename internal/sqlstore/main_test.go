package sqlstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"telapi/internal/redact"
	"telapi/test/testkit"
)

// companionJob is the environment variable that makes the test binary a companion:
// another process that uses the same database. It does the job, prints one line and
// exits when its input is closed.
const companionJob = "SQLSTORE_TEST_COMPANION"

func TestMain(m *testing.M) {
	if job := os.Getenv(companionJob); job != "" {
		companion(job)
		return
	}
	testkit.Main(m)
}

func companion(job string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	s, err := Open(Options{DSN: redact.Secret(os.Getenv("DSN")), DataDir: os.Getenv("DIR")})
	fail(err)
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	switch job {
	case "migrate":
		fail(s.Migrate(ctx))
	case "lock":
		_, err := s.LockServer()
		fail(err)
	case "write":
		tx, err := s.write.BeginTx(ctx, nil)
		fail(err)
		defer func() { _ = tx.Commit() }()
	}
	fmt.Println("done")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// process is a companion that has printed its line.
type process struct {
	output  string // the line
	command *exec.Cmd
	input   io.Closer
}

// end stops the process and waits for it.
func (p *process) end() {
	_ = p.input.Close()
	_ = p.command.Wait()
}

// startCompanion starts a companion. await waits for its line.
func startCompanion(t *testing.T, job string, o Options) (await func() *process) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), companionJob+"="+job, "DSN="+o.DSN.Reveal(), "DIR="+o.DataDir)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{command: command, input: input}
	t.Cleanup(p.end)
	return func() *process {
		t.Helper()
		line, err := bufio.NewReader(output).ReadString('\n')
		if err != nil {
			t.Fatalf("the %s process printed nothing: %v", job, err)
		}
		p.output = strings.TrimSpace(line)
		return p
	}
}
