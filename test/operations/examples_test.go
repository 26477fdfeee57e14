package operations

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// The script starts its servers, and stops them after SIGTERM. The test copies the
// command that it prints.
func TestTwoInstancesExample(t *testing.T) {
	t.Parallel()
	testkit.StartRedis(t) // requires redis-server
	binary, err := harness.Binary()
	testkit.Must(t, err)
	data, err := os.MkdirTemp("", "telapi-two-instances")
	if err == nil {
		err = os.Chmod(data, 0o755) // for the user of PostgreSQL
	}
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	out := &testkit.Buffer{}
	cmd := exec.Command("../../examples/two-instances/run.sh")
	cmd.Env = append(harness.Environ(nil), "DATA="+data)
	for _, name := range []string{"PORT", "PORT_1", "PORT_2", "PORT_MEDIA", "PORT_REDIS", "PORT_POSTGRES"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", name, testkit.FreePort(t)))
	}
	cmd.Env = append(cmd.Env, "PATH="+strings.TrimSuffix(binary, "/telapi")+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testkit.Must(t, cmd.Start())
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("output:\n%s", out)
		}
	})
	testkit.Until(t, "the script prints a command, or fails", func() bool { return out.Has("Try ") || len(exited) > 0 })
	_, try, found := strings.Cut(out.String(), "Try ")
	if !found {
		t.Fatal("the script failed")
	}
	if got := run(t, ".", "sh", "-c", try); !strings.Contains(got, `"name":"Chat"`) {
		t.Errorf("the command returns %s", got)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	testkit.Until(t, "the script ends", func() bool { return len(exited) > 0 })
	<-exited
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("exit code %d after SIGTERM, want 143", code)
	}
	if _, err := os.Stat(data + "/postgres/postmaster.pid"); err == nil {
		t.Error("PostgreSQL is still running")
	}
}
