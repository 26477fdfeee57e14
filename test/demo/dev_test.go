package demo

import (
	"syscall"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

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
