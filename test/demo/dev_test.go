package demo

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/test/boot"
	"telapi/test/contract"
	"telapi/test/talk"
)

// dev runs telapi dev and returns what it says of itself, too.
func dev(t *testing.T, env boot.Env, args ...string) (*boot.Process, *boot.Instance, devCard) {
	t.Helper()
	env["TELAPI_PORT"] = "0"
	p := boot.StartProcess(t, env, append([]string{"dev", "--json"}, args...)...)
	var card devCard
	if err := json.Unmarshal([]byte(p.Line(t, "{")), &card); err != nil {
		t.Fatal(err)
	}
	return p, &boot.Instance{URL: card.URL, Client: contract.Client(t)}, card
}

type devCard struct{ URL, Playground, MediaURL, Key, EndpointID string }

func (c devCard) connect(t *testing.T, i *boot.Instance, mode string) *talk.Browser {
	t.Helper()
	id, token := talk.Issue(t, i, c.Key, map[string]any{"endpointId": c.EndpointID, "mode": mode})
	b := talk.Connect(t, i, id, token, "")
	b.Expect("ready")
	return b
}

// Everything is under way: a call that speaks, a question to the bot that it
// will not answer soon, somebody who looks on.
func TestCtrlCEndsDevInOrder(t *testing.T) {
	t.Parallel()
	p, i, card := dev(t, boot.Env{"DATA_DIR": t.TempDir()})
	if card.Playground != card.URL+"/playground/" || card.MediaURL == "" {
		t.Errorf("dev says %+v", card)
	}
	b := card.connect(t, i, "audio")
	until(b, "audio", `"sequence":5`)
	b.Chat("be silent")
	until(b, "chat", "say nothing")
	get(t, i, "/playground/feed?sessionId="+b.Session, "", card.Key)
	if err := p.Cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if got := b.CloseCode(); got != 1012 {
		t.Errorf("the socket was closed with %d", got)
	}
	if !p.Ended(15 * time.Second) {
		t.Fatal("dev did not end within 15 s of Ctrl-C")
	}
	if p.ExitCode() != 0 || p.Stderr.Has(`"level":"ERROR"`) {
		t.Errorf("exit code %d", p.ExitCode())
	}
	for _, secret := range []string{card.Key, "cbt_"} {
		if p.Stderr.Has(secret) {
			t.Error("the log holds a credential")
		}
	}
}

func TestASecondDevSaysThatTheDataFolderIsTaken(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	dev(t, boot.Env{"DATA_DIR": folder})
	second := boot.StartProcess(t, boot.Env{"DATA_DIR": folder, "TELAPI_PORT": "0"}, "dev")
	if !second.Ended(20*time.Second) || second.ExitCode() != 1 || !second.Stderr.Has("another telapi process uses the data directory "+folder) {
		t.Errorf("it says %s", second.Stderr)
	}
}

func TestDevWithoutDemoLeavesSessionsToOthers(t *testing.T) {
	t.Parallel()
	env := boot.Env{"DATA_DIR": t.TempDir()}
	_, i, card := dev(t, env, "--no-demo")
	b := card.connect(t, i, "chat")
	if ch := talk.Accept(t, talk.StartRuntime(t, env)); ch.ID != b.Session {
		t.Errorf("accepted %s, opened %s", ch.ID, b.Session)
	}
}

// Not parallel to the others, whose goroutines would be taken for its own.
func TestDemoLeavesNothingRunning(t *testing.T) {
	before := goleak.IgnoreCurrent()
	i := boot.StartDev(t, boot.Env{"PLAYGROUND_ENABLED": "true", "SESSION_RECONNECT_JITTER": "0s"}, true)
	d, err := i.App.Demo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, i, "audio")
	b.Chat("be silent")
	until(b, "chat", "say nothing")
	feed := get(t, i, "/playground/feed?sessionId="+b.Session, "", d.Key.Reveal())
	b.Cut()
	if err := i.Stop(); err != nil {
		t.Error(err)
	}
	_ = feed.Body.Close()
	i.Client.CloseIdleConnections()
	boot.VerifyNoLeaks(t, before)
}
