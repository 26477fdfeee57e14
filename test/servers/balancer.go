package servers

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// StartHAProxy runs HAProxy with a configuration file and the variables it
// names until the test ends, and waits until ready returns nil. It returns what
// HAProxy has printed by the time it is asked.
func StartHAProxy(t testing.TB, config string, env []string, ready func() error) (said func() string) {
	t.Helper()
	cmd := exec.Command(need(t, "haproxy", "haproxy", "/usr/sbin"), "-db", "-f", config)
	cmd.Env = append(os.Environ(), env...)
	return serve(t, cmd, ready)
}

// StartNginx does the same for nginx, with a folder of its own for what it writes.
func StartNginx(t testing.TB, config string, ready func() error) (said func() string) {
	t.Helper()
	dir := t.TempDir()
	return serve(t, exec.Command(need(t, "nginx", "nginx-light", "/usr/sbin"), "-p", dir, "-c", config,
		"-g", "daemon off; pid "+filepath.Join(dir, "pid")+";"), ready)
}

func serve(t testing.TB, cmd *exec.Cmd, ready func() error) (said func() string) {
	t.Helper()
	// Asked to end, never killed: nginx' workers would outlive their master.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p := launch(t, cmd)
	t.Cleanup(func() {
		_ = p.stop(syscall.SIGTERM)
		if t.Failed() {
			said := p.out.String()
			t.Logf("%s said at the end:\n%s", cmd.Path, said[max(0, len(said)-4096):])
		}
	})
	p.await(t, ready)
	return p.out.String
}
