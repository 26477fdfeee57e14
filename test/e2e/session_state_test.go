package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// A session is connected while a browser is connected to any instance.
func TestSessionStateFollowsConnection(t *testing.T) {
	env := realStores(t)
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant := harness.NewTenant(t, a, "tenant")
	session, token := tenant.Session(t, a)
	for on, other := range map[*harness.Instance]*harness.Instance{a: b, b: a} {
		browser := harness.Connect(t, on, session, token, "")
		browser.Expect(`"event":"ready"`)
		if got := sessionState(t, other, tenant, session); got != "connected" {
			t.Errorf("state on the other instance is %s, want connected", got)
		}
		_ = browser.Conn.Close()
		testkit.Until(t, "the session is disconnected", func() bool { return sessionState(t, other, tenant, session) == "disconnected" })
	}
}

// The texts of browser actions are in no file, and after a session has ended neither are
// its other texts: while the server runs, and after it has stopped. A runtime that has not
// read them before a restart receives the entries without them.
func TestTextsAreKeptOutOfFiles(t *testing.T) {
	t.Parallel()
	env := harness.WithDataDir(t, harness.Env{"LOG_LEVEL": "debug"})
	i, tenant := startTenant(t, env)
	connect := func(text string) (session, action string) {
		session, b := openSession(t, i, tenant)
		b.Expect(`"event":"ack"`, b.Chat(text))
		action = b.Send("browser_action", "browserAction", `{"type":"voice","transcript":"swordfish `+text+`"}`)
		b.Expect(`"event":"ack"`, action)
		return session, action
	}
	live, liveAction := connect("herring")
	ended, endedAction := connect("halibut")
	files := func() string { return readAllFiles(t, env["DATA_DIR"]) }
	absent := func(when string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			wantNotLeaked(t, map[string]string{when + ", a file": files()}, map[string]string{"text": text})
		}
	}
	testkit.Until(t, "a snapshot with both conversations", func() bool {
		all := files()
		return strings.Contains(all, `"herring"`) && strings.Contains(all, `"halibut"`) &&
			strings.Count(all, liveAction) > 1 && strings.Count(all, endedAction) > 1 // in the database and in the snapshot
	})
	absent("while the server runs", "swordfish")

	if resp, body := i.Call(t, "DELETE", "/api/v1/sessions/"+ended, "X-API-Key", tenant.Key); resp.StatusCode != 204 {
		t.Fatalf("end the session: %d %s", resp.StatusCode, body)
	}
	testkit.Until(t, "a snapshot without the texts of the ended session", func() bool { return !strings.Contains(files(), "halibut") })
	absent("after DELETE", "swordfish")
	testkit.Must(t, i.Stop())
	absent("after the stop", "swordfish", "halibut")

	i = harness.Start(t, env)
	r := harness.StartRuntime(t, i)
	texts := map[string]string{live: `"herring"`, ended: `"[redacted]"`}
	for range len(texts) {
		ch := harness.Accept(t, r)
		want := texts[ch.ID]
		var chat, action string
		for chat == "" || action == "" {
			if m := harness.Receive(t, ch).Message; m != nil {
				chat, action = chat+string(m.Chat), action+string(m.BrowserAction)
			}
		}
		if !strings.Contains(chat, want) || action != `{"type":"voice","transcript":"[redacted]"}` {
			t.Errorf("after the restart, the runtime received %s and %s, want %s and a redacted action", chat, action, want)
		}
	}
}

// ignoreRemoved returns nil for a file that was replaced or removed meanwhile.
func ignoreRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readAllFiles(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreRemoved(err)
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return ignoreRemoved(err)
	})
	if err != nil || all.Len() == 0 {
		t.Fatalf("read %s: %v", dir, err)
	}
	return all.String()
}
