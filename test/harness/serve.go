package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"telapi/internal/team"
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

// DevOutput is what "telapi dev --json" prints.
type DevOutput struct{ URL, Playground, MediaURL, Key, TeamID, EndpointID string }

// Dev starts "telapi dev" as a process. The returned Instance has no App and no Log.
func Dev(t testing.TB, env Env, args ...string) (*Instance, *Process, DevOutput) {
	t.Helper()
	process := StartProcess(t, Merge(Env{"TELAPI_PORT": "0"}, env), append([]string{"dev", "--json"}, args...)...)
	var out DevOutput
	testkit.Must(t, json.Unmarshal([]byte(process.WaitForLine(t, "{")), &out))
	return &Instance{URL: out.URL, Client: contract.Client(t)}, process, out
}

// Connect opens a session of the demo and connects to it.
func (out DevOutput) Connect(t testing.TB, i *Instance, mode string) (b *Browser, token string) {
	t.Helper()
	return Tenant{Key: out.Key, Endpoint: team.Endpoint{ID: out.EndpointID}}.Connect(t, i, "mode", mode)
}
