package e2e

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"telapi/test/harness"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

// After SIGTERM a request in flight finishes, and the process exits with 0.
func TestSIGTERMDrains(t *testing.T) {
	i, p := harness.Serve(t, nil)

	conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n") // half a request
	testkit.Must(t, err)
	testkit.Must(t, p.Cmd.Process.Signal(syscall.SIGTERM))
	testkit.Until(t, "the instance drains", func() bool { return p.Stderr.Has(`"draining"`) })
	_, err = io.WriteString(conn, "\r\n")
	testkit.Must(t, err)
	response, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 200") || !strings.Contains(string(response), "Connection: close") {
		t.Errorf("request in flight: %v %.200s, want 200 with Connection: close", err, response)
	}
	if code := p.WaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if !p.Stderr.Has("drained") {
		t.Error("the log does not report the drain")
	}
}

func TestStopLeavesNoGoroutines(t *testing.T) {
	envs := []harness.Env{{}, realStores(t)}
	before := goleak.IgnoreCurrent() // ignore the goroutines that supervise the real servers
	for _, env := range envs {
		i, tenant := startTenant(t, env)
		i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", tenant.Key)
		i.Client.CloseIdleConnections()
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	}
	leaks.Verify(t, before)
}
