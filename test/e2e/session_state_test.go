package e2e

import (
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// A session is connected while a browser is connected to any instance. It expires
// SESSION_IDLE_TIMEOUT after the last disconnect.
func TestSessionStateFollowsConnection(t *testing.T) {
	t.Parallel()
	const idleTimeout = 15 * time.Second // long enough to reconnect on a busy machine
	env := realStores(t)
	env["SESSION_IDLE_TIMEOUT"], env["SESSION_PING_INTERVAL"] = idleTimeout.String(), "5s"
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant := harness.NewTenant(t, a, "tenant")
	session, token := harness.Issue(t, a, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	first := harness.Connect(t, a, session, token, "")
	first.Expect(`"event":"ready"`)
	if got := sessionState(t, b, tenant, session); got != "connected" {
		t.Errorf("state on the other instance is %s, want connected", got)
	}
	_ = first.Conn.Close()
	waitForState := func(state string) {
		t.Helper()
		testkit.Until(t, "the session is "+state, func() bool { return sessionState(t, b, tenant, session) == state })
	}
	waitForState("disconnected")
	second := harness.Connect(t, b, session, token, "")
	second.Expect(`"event":"ready"`)
	beyondIdleTimeout := time.Now().Add(idleTimeout + 2*time.Second)
	testkit.Until(t, "the idle timeout would have passed", func() bool {
		if got := sessionState(t, a, tenant, session); got != "connected" {
			t.Fatalf("state of a session in use is %s, want connected", got)
		}
		second.Send("ping", "ping", "{}")
		second.Expect(`"pong"`)
		return time.Now().After(beyondIdleTimeout)
	})
	_ = second.Conn.Close()
	waitForState("expired")
	resp, body := b.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token)
	wantStatus(t, resp, body, 410, code("SESSION_ENDED"))
}

// This is how calls usually end: the browser disconnects, then the runtime ends
// the session.
func TestRuntimeEndsSessionAfterDisconnect(t *testing.T) {
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		env = harness.WithDataDir(t, env)
		i := harness.Start(t, env)
		tenant := harness.NewTenant(t, i, "tenant")
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b := harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
		ch := harness.Accept(t, harness.StartRuntime(t, env))
		_ = b.Conn.Close()
		for harness.Receive(t, ch).Event != "disconnected" {
		}
		if err := ch.End(t.Context(), "hung up"); err != nil {
			t.Fatal(err)
		}
		if got := sessionState(t, i, tenant, session); got != "ended" {
			t.Errorf("state is %s, want ended", got)
		}
	})
}

// The text of a browser action never appears in logs, metrics or traces. It is
// stored in the database only with ENABLE_PII_LOGGING.
func TestBrowserActionTranscriptIsRedacted(t *testing.T) {
	t.Parallel()
	for _, keepText := range []string{"false", "true"} {
		t.Run("ENABLE_PII_LOGGING="+keepText, func(t *testing.T) {
			collector := harness.StartCollector(t)
			env := harness.WithDataDir(t, harness.Merge(collector.Env(), harness.Env{"ENABLE_PII_LOGGING": keepText, "LOG_LEVEL": "debug"}))
			i := harness.Start(t, env)
			tenant := harness.NewTenant(t, i, "tenant")
			session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
			b := harness.Connect(t, i, session, token, "")
			b.Expect(`"event":"ready"`)
			const action = `{"type":"voice","name":"greeting","payload":{"transcript":{"final":"swordfish alpha","words":["swordfish","beta"]},"confidence":0.93}}`
			id := b.Send("browser_action", "browserAction", action)
			b.Expect(`"event":"ack"`, id)
			b.Write(strings.Replace(harness.Frame("browser_action", session, "not a uuid", "browserAction", action), "to_ari", "to_browser", 1))
			b.Expect(`"type":"error"`)

			stored := storedAction(t, env, session, id)
			want := strings.NewReplacer(`"swordfish alpha"`, `"[redacted]"`, `"swordfish"`, `"[redacted]"`, `"beta"`, `"[redacted]"`,
				`"greeting"`, `"[redacted]"`, `0.93`, `"[redacted]"`).Replace(action)
			if keepText == "true" {
				want = action
			}
			if stored != want {
				t.Errorf("the stored action is\n%s, want\n%s", stored, want)
			}
			_, metrics := i.Call(t, "GET", "/metrics")
			if err := i.Stop(); err != nil { // flushes the exporters
				t.Fatal(err)
			}
			places := map[string]string{"log": i.Log.String(), "metrics": metrics, "export": collector.String()}
			if keepText == "false" {
				places["data directory"] = readAllFiles(t, env["DATA_DIR"])
			}
			for where, text := range places {
				if strings.Contains(text, "swordfish") {
					t.Errorf("%s contains the transcript", where)
				}
			}
		})
	}
}

// storedAction waits for an action to be stored in the database and returns it.
func storedAction(t *testing.T, env harness.Env, session, message string) (action string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(env["DATA_DIR"], "telapi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	testkit.Until(t, "the action is stored", func() bool {
		return db.QueryRowContext(t.Context(), "SELECT action FROM browser_actions WHERE session_id = $1 AND message_id = $2", session, message).Scan(&action) == nil
	})
	return action
}

// The texts of browser actions are in no file, and after a session has ended neither are
// its other texts: while the server runs, and after it has stopped. A runtime that has not
// read them before a restart receives the entries without them.
func TestTextsAreKeptOutOfFiles(t *testing.T) {
	env := harness.WithDataDir(t, harness.Env{"LOG_LEVEL": "debug"})
	i := harness.Start(t, env)
	tenant := harness.NewTenant(t, i, "tenant")
	connect := func(text string) (session string, b *harness.Browser, action string) {
		session, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		b = harness.Connect(t, i, session, token, "")
		b.Expect(`"event":"ready"`)
		b.Expect(`"event":"ack"`, b.Chat(text))
		action = b.Send("browser_action", "browserAction", `{"type":"voice","transcript":"swordfish `+text+`"}`)
		b.Expect(`"event":"ack"`, action)
		return session, b, action
	}
	live, _, liveAction := connect("herring")
	ended, _, endedAction := connect("halibut")
	files := func() string { return readAllFiles(t, env["DATA_DIR"]) }
	absent := func(when string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if at := strings.Index(files(), text); at >= 0 {
				t.Errorf("%s, a file contains %q: …%.300q", when, text, files()[max(0, at-150):])
			}
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
	if err := i.Stop(); err != nil {
		t.Fatal(err)
	}
	absent("after the stop", "swordfish", "halibut")

	harness.Start(t, env)
	r := harness.StartRuntime(t, env)
	for session, want := range map[string]string{live: `"herring"`, ended: `"[redacted]"`} {
		ch, err := r.Attach(t.Context(), session)
		if err != nil {
			t.Fatal(err)
		}
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
