package testkit

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Sox returns the path of sox, the reference for audio conversions.
func Sox(t testing.TB) string { return need(t, "sox", "sox") }

// Promtool returns the path of promtool, which tests alert rules.
func Promtool(t testing.TB) string { return need(t, "promtool", "prometheus") }

// Espeak returns the path of espeak-ng.
func Espeak(t testing.TB) string { return need(t, "espeak-ng", "espeak-ng") }

// Curl returns the path of curl.
func Curl(t testing.TB) string { return need(t, "curl", "curl") }

// Python returns the path of Python 3.
func Python(t testing.TB) string { return need(t, "python3", "python3") }

// Node returns the path of Node.
func Node(t testing.TB) string { return need(t, "node", "nodejs") }

// StartProgram runs a program until the test ends. It returns when ready returns true
// for the output up to now. The returned function returns the output.
func StartProgram(t testing.TB, cmd *exec.Cmd, ready func(output string) bool) (output func() string) {
	t.Helper()
	p := launch(t, cmd)
	t.Cleanup(func() { _ = p.stop(syscall.SIGKILL) })
	p.await(t, func() error {
		if !ready(p.out.String()) {
			return errors.New("not ready")
		}
		return nil
	})
	return p.out.String
}

// StartCoturn runs coturn on 127.0.0.1 until the test ends.
func StartCoturn(t testing.TB, config string, port int) {
	t.Helper()
	dir := t.TempDir()
	StartProgram(t, exec.Command(need(t, "turnserver", "coturn"), "-c", config, "--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1",
		"--log-file=stdout", "--simple-log", "--pidfile="+filepath.Join(dir, "pid"), "--userdb="+filepath.Join(dir, "users")),
		func(string) bool {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return false
			}
			_ = conn.Close()
			return true
		})
}

// Podman returns the path of podman. It also requires buildah and runc.
func Podman(t testing.TB) string {
	need(t, "buildah", "buildah")
	need(t, "runc", "runc", "/usr/sbin")
	return need(t, "podman", "podman")
}
