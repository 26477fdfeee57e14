package harness

import (
	"fmt"
	"net/http"
	"testing"

	"telapi/test/contract"
	"telapi/test/testkit"
)

// ServeEnv returns the settings of a server process on a free port, overridden
// by env, and its URL.
func ServeEnv(t testing.TB, env Env) (full Env, url string) {
	t.Helper()
	full = Merge(Env{"TELAPI_PORT": fmt.Sprint(testkit.FreePort(t)), "JWT_SECRET": Secret, "DATA_DIR": t.TempDir(), "LOG_FORMAT": "json",
		"DRAIN_DELAY": "0s", "SESSION_RECONNECT_JITTER": "0s"}, env)
	return full, "http://127.0.0.1:" + full["TELAPI_PORT"]
}

// Serve starts "telapi serve" as a process and waits until it is healthy. The
// returned Instance has no App and no Log.
func Serve(t testing.TB, env Env) (*Instance, *Process) {
	t.Helper()
	full, url := ServeEnv(t, env)
	process := StartProcess(t, full, "serve")
	i := &Instance{URL: url, Client: contract.Client(t)}
	testkit.Until(t, url+" is healthy", func() bool { return i.HealthStatus() == http.StatusOK })
	return i, process
}

// HealthStatus returns the status of /health, or 0 if the instance does not
// respond.
func (i *Instance) HealthStatus() int {
	resp, err := i.Client.Get(i.URL + "/health")
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
