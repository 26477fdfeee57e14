package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// StartHAProxy runs HAProxy until the test ends. The configuration file may use
// the variables in env. StartHAProxy returns when ready returns nil. The returned
// function returns the output up to now.
func StartHAProxy(t testing.TB, config string, env []string, ready func() error) (output func() string) {
	t.Helper()
	cmd := exec.Command(need(t, "haproxy", "haproxy", "/usr/sbin"), "-db", "-f", config)
	cmd.Env = append(os.Environ(), env...)
	return serve(t, cmd, ready)
}

// StartNginx runs nginx until the test ends, in a temporary directory. It returns
// when ready returns nil. The returned function returns the output up to now.
func StartNginx(t testing.TB, config string, ready func() error) (output func() string) {
	t.Helper()
	dir := t.TempDir()
	return serve(t, exec.Command(need(t, "nginx", "nginx-light", "/usr/sbin"), "-p", dir, "-c", config,
		"-g", "daemon off; pid "+filepath.Join(dir, "pid")+";"), ready)
}

func serve(t testing.TB, cmd *exec.Cmd, ready func() error) (output func() string) {
	t.Helper()
	// Not SIGKILL: the workers of nginx would outlive their master.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p := launch(t, cmd)
	t.Cleanup(func() {
		_ = p.stop(syscall.SIGTERM)
		if t.Failed() {
			out := p.out.String()
			t.Logf("last output of %s:\n%s", cmd.Path, out[max(0, len(out)-4096):])
		}
	})
	p.await(t, ready)
	return p.out.String
}
