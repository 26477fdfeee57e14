package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"telapi/internal/httpapi"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// listInstances returns the instances of telapi dev.
func listInstances(t *testing.T, i *harness.Instance, key string) []httpapi.Instance {
	t.Helper()
	var body struct{ Instances []httpapi.Instance }
	testkit.Must(t, json.NewDecoder(get(t, i, "/playground/instances", "", "X-API-Key", key).Body).Decode(&body))
	return body.Instances
}

func changeInstance(t *testing.T, i *harness.Instance, key string, number int, action string) {
	t.Helper()
	if resp, body := i.Post(t, fmt.Sprintf("/playground/instances/%d/%s", number, action), "", "X-API-Key", key); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s instance %d: status %d: %s", action, number, resp.StatusCode, body)
	}
}

func TestDevWithAllInstancesKilled(t *testing.T) {
	t.Parallel()
	i, p, out := harness.Dev(t, harness.Env{"DATA_DIR": t.TempDir()}, "--instances", "2")
	changeInstance(t, i, out.Key, 1, "kill")
	list := listInstances(t, i, out.Key)
	remaining := list[1].PID
	changeInstance(t, i, out.Key, 2, "kill")
	changeInstance(t, i, out.Key, 2, "kill") // has no effect
	if resp, body := i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", out.Key); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("without instances: status %d, want 503 with Retry-After: %s", resp.StatusCode, body)
	}
	if resp, body := i.Post(t, "/playground/instances/3/start", "", "X-API-Key", out.Key); resp.StatusCode != http.StatusNotFound {
		t.Errorf("instance 3: status %d, want 404: %s", resp.StatusCode, body)
	}
	if resp, body := i.Post(t, "/playground/instances/1/kill", ""); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without key: status %d, want 401: %s", resp.StatusCode, body)
	}
	changeInstance(t, i, out.Key, 2, "start")
	changeInstance(t, i, out.Key, 2, "start") // has no effect
	list = listInstances(t, i, out.Key)
	if list[0].State != "stopped" || list[1].State != "running" || list[1].PID == remaining {
		t.Errorf("instances %+v, want only the second one running, in a new process", list)
	}
	b, _ := out.Connect(t, i, "chat")
	testkit.Must(t, p.Cmd.Process.Signal(syscall.SIGTERM))
	testkit.Equal(t, "close code", b.CloseCode(), 1012)
	testkit.Equal(t, "exit code", p.WaitExit(t), 0)
	if err := syscall.Kill(list[1].PID, 0); err != syscall.ESRCH {
		t.Errorf("process of the second instance: %v, want it to end with telapi dev", err)
	}
}

// A crashed telapi dev leaves no instance behind.
func TestInstancesEndWithDev(t *testing.T) {
	t.Parallel()
	i, p, out := harness.Dev(t, harness.Env{"DATA_DIR": t.TempDir()}, "--instances", "2")
	list := listInstances(t, i, out.Key)
	testkit.Must(t, p.Cmd.Process.Kill())
	for _, instance := range list {
		testkit.Until(t, fmt.Sprint("instance ", instance.Number, " ends"), func() bool { return syscall.Kill(instance.PID, 0) == syscall.ESRCH })
	}
}

// Ctrl-C arrives during a call with speech, an unanswered message and an open feed.
func TestCtrlCStopsDevGracefully(t *testing.T) {
	t.Parallel()
	i, p, out := harness.Dev(t, harness.Env{"DATA_DIR": t.TempDir()})
	if out.Playground != out.URL+"/playground/" || out.MediaURL == "" {
		t.Errorf("output %+v, want a playground at the API's URL and a media service", out)
	}
	b, _ := out.Connect(t, i, "audio")
	readUntil(b, "audio", `"sequence":5`)
	b.Chat("be silent")
	readUntil(b, "chat", "be silent for a while")
	get(t, i, "/playground/feed?sessionId="+b.Session, "", "X-API-Key", out.Key)
	testkit.Must(t, p.Cmd.Process.Signal(syscall.SIGINT))
	testkit.Equal(t, "close code", b.CloseCode(), 1012)
	testkit.Equal(t, "exit code", p.WaitExit(t), 0)
	if p.Stderr.Has(`"level":"ERROR"`) {
		t.Error("the shutdown logged an error")
	}
	for _, secret := range []string{out.Key, "cbt_"} {
		if p.Stderr.Has(secret) {
			t.Error("the log contains a credential")
		}
	}
}
