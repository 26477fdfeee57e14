package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/test/boot"
	"telapi/test/contract"
	"telapi/test/poll"
	"telapi/test/servers"
)

func serveEnv(t *testing.T, more boot.Env) (env boot.Env, url string) {
	port := servers.FreePort(t)
	env = boot.Env{"TELAPI_PORT": fmt.Sprint(port), "JWT_SECRET": boot.Secret, "DATA_DIR": t.TempDir(), "LOG_FORMAT": "json"}
	for name, value := range more {
		env[name] = value
	}
	return env, fmt.Sprintf("http://127.0.0.1:%d", port)
}

func healthStatus(t *testing.T, url string) int {
	t.Helper()
	resp, err := contract.Client(t).Get(url + "/health")
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// SIGTERM: /health answers 503 while the instance still serves, a request in
// flight finishes, and the process ends well.
func TestSIGTERMDrains(t *testing.T) {
	env, url := serveEnv(t, boot.Env{"DRAIN_DELAY": "5s"})
	p := boot.StartProcess(t, env, "serve")
	poll.Until(t, "healthy", func() bool { return healthStatus(t, url) == 200 })

	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n"); err != nil { // half a request
		t.Fatal(err)
	}

	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "/health is 503 while draining", func() bool { return healthStatus(t, url) == 503 })
	if _, err := io.WriteString(conn, "\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") || !strings.Contains(string(answer), "Connection: close") {
		t.Errorf("request in flight: %v %.200s", err, answer)
	}
	if !p.Ended(30 * time.Second) {
		t.Fatal("still running")
	}
	if code := p.ExitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if !p.Stderr.Has("drained") {
		t.Error("the log does not say that it drained")
	}
}

func TestSecondSignalStopsImmediately(t *testing.T) {
	env, url := serveEnv(t, boot.Env{"DRAIN_DELAY": "1m", "SHUTDOWN_TIMEOUT": "5m"})
	p := boot.StartProcess(t, env, "serve")
	poll.Until(t, "healthy", func() bool { return healthStatus(t, url) == 200 })
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	poll.Until(t, "draining", func() bool { return healthStatus(t, url) == 503 })
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	if !p.Ended(20 * time.Second) {
		t.Error("a second signal did not end it")
	}
}

func TestShortJWTSecretPreventsStart(t *testing.T) {
	for _, secret := range []string{"", strings.Repeat("x", 31)} {
		env, _ := serveEnv(t, boot.Env{"JWT_SECRET": secret})
		r := telapi(t, env, "serve")
		if r.exit != 1 || !strings.Contains(r.stderr, "JWT_SECRET") || !strings.Contains(r.stderr, "32") {
			t.Errorf("secret of %d bytes: exit %d, stderr %s", len(secret), r.exit, r.stderr)
		}
		if secret != "" && strings.Contains(r.stderr, secret) {
			t.Error("the error shows the secret")
		}
	}
}

// A client that never finishes its header is cut off after ten seconds.
func TestSlowRequestHeaderIsTimedOut(t *testing.T) {
	t.Parallel()
	i := boot.Start(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	start := time.Now()
	answer, err := io.ReadAll(conn)
	if err != nil || time.Since(start) < 5*time.Second {
		t.Errorf("after %s: %v %q", time.Since(start), err, answer)
	}
}

func TestStopLeavesNoGoroutines(t *testing.T) {
	envs := []boot.Env{{}, realStores(t)}
	before := goleak.IgnoreCurrent() // the real servers are watched until the test ends
	for _, env := range envs {
		i := boot.Start(t, env)
		own := newTenant(t, i, "own")
		call(t, i, "GET", "/api/v1/endpoints", "X-API-Key", own.key)
		i.Client.CloseIdleConnections()
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	}
	boot.VerifyNoLeaks(t, before)
}
