package demo

import (
	"encoding/json"
	"syscall"
	"testing"

	"telapi/test/contract"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// startDev runs telapi dev and returns its JSON output.
func startDev(t *testing.T, env harness.Env, args ...string) (*harness.Process, *harness.Instance, devOutput) {
	t.Helper()
	p := harness.StartProcess(t, harness.Merge(harness.Env{"TELAPI_PORT": "0"}, env), append([]string{"dev", "--json"}, args...)...)
	var out devOutput
	testkit.Must(t, json.Unmarshal([]byte(p.WaitForLine(t, "{")), &out))
	return p, &harness.Instance{URL: out.URL, Client: contract.Client(t)}, out
}

type devOutput struct{ URL, Playground, MediaURL, Key, EndpointID string }

func (out devOutput) connect(t *testing.T, i *harness.Instance, mode string) *harness.Browser {
	t.Helper()
	id, token := harness.Issue(t, i, out.Key, map[string]any{"endpointId": out.EndpointID, "mode": mode})
	b := harness.Connect(t, i, id, token, "")
	b.Expect("ready")
	return b
}

// Ctrl-C arrives during a call with speech, an unanswered message and an open feed.
func TestCtrlCStopsDevGracefully(t *testing.T) {
	t.Parallel()
	p, i, out := startDev(t, harness.Env{"DATA_DIR": t.TempDir()})
	if out.Playground != out.URL+"/playground/" || out.MediaURL == "" {
		t.Errorf("output %+v, want a playground at the API's URL and a media service", out)
	}
	b := out.connect(t, i, "audio")
	readUntil(b, "audio", `"sequence":5`)
	b.Chat("be silent")
	readUntil(b, "chat", "be silent for a while")
	get(t, i, "/playground/feed?sessionId="+b.Session, "", "X-API-Key", out.Key)
	testkit.Must(t, p.Cmd.Process.Signal(syscall.SIGINT))
	if got := b.CloseCode(); got != 1012 {
		t.Errorf("close code %d, want 1012", got)
	}
	if code := p.WaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if p.Stderr.Has(`"level":"ERROR"`) {
		t.Error("the shutdown logged an error")
	}
	for _, secret := range []string{out.Key, "cbt_"} {
		if p.Stderr.Has(secret) {
			t.Error("the log contains a credential")
		}
	}
}
