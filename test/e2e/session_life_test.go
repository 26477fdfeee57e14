package e2e

import (
	"bytes"
	"database/sql"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// A session is connected while a browser is, on whichever instance, and expires
// when none has been for the idle time.
func TestSessionStateFollowsConnection(t *testing.T) {
	env := realStores(t)
	env["SESSION_IDLE_TIMEOUT"], env["SESSION_PING_INTERVAL"] = "3s", "1s"
	a, b := boot.Start(t, env), boot.Start(t, env)
	own := newTenant(t, a, "own")
	session, token := talk.Issue(t, a, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
	first := talk.Connect(t, a, session, token, "")
	first.Expect(`"event":"ready"`)
	if got := stateOf(t, b, own, session); got != "connected" {
		t.Errorf("on the other instance the session is %s", got)
	}
	_ = first.Conn.Close()
	becomes := func(state string) {
		t.Helper()
		poll.Until(t, "the session is "+state, func() bool {
			time.Sleep(50 * time.Millisecond) // the rate limit is not what is tried here
			return stateOf(t, b, own, session) == state
		})
	}
	becomes("disconnected")
	second := talk.Connect(t, b, session, token, "")
	second.Expect(`"event":"ready"`)
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(200 * time.Millisecond) {
		if got := stateOf(t, a, own, session); got != "connected" {
			t.Fatalf("a session in use is %s", got)
		}
		second.Send("ping", "ping", "{}")
		second.Expect(`"pong"`)
	}
	_ = second.Conn.Close()
	becomes("expired")
	resp, body := call(t, b, "GET", "/ws/session", "Authorization", "Bearer "+token)
	wantStatus(t, resp, body, 410, code("SESSION_ENDED"))
}

// The usual end of a call: the browser leaves, and the runtime ends what is left.
func TestRuntimeEndsSessionAfterDisconnect(t *testing.T) {
	for name, env := range map[string]boot.Env{"embedded": {}, "postgres and redis": realStores(t)} {
		t.Run(name, func(t *testing.T) {
			env := talk.WithDataDir(t, env)
			i := boot.Start(t, env)
			own := newTenant(t, i, "own")
			session, token := talk.Issue(t, i, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
			b := talk.Connect(t, i, session, token, "")
			b.Expect(`"event":"ready"`)
			ch := talk.Accept(t, talk.StartRuntime(t, env))
			_ = b.Conn.Close()
			for talk.Receive(t, ch).Event != "disconnected" {
			}
			if err := ch.End(t.Context(), "hung up"); err != nil {
				t.Fatal(err)
			}
			if got := stateOf(t, i, own, session); got != "ended" {
				t.Errorf("the session is %s", got)
			}
		})
	}
}

// What a person said or typed stays between browser and runtime.
func TestBrowserActionTranscriptIsRedacted(t *testing.T) {
	for _, keepText := range []string{"false", "true"} {
		t.Run("ENABLE_PII_LOGGING="+keepText, func(t *testing.T) {
			var mu sync.Mutex
			var exported bytes.Buffer
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				defer mu.Unlock()
				exported.Write(body)
			}))
			defer collector.Close()
			env := talk.WithDataDir(t, boot.Env{
				"ENABLE_PII_LOGGING": keepText, "LOG_LEVEL": "debug", "OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
			})
			i := boot.Start(t, env)
			own := newTenant(t, i, "own")
			session, token := talk.Issue(t, i, own.key, map[string]any{"endpointId": own.endpoint.ID, "mode": "chat"})
			b := talk.Connect(t, i, session, token, "")
			b.Expect(`"event":"ready"`)
			const action = `{"type":"voice","name":"greeting","payload":{"transcript":{"final":"swordfish alpha","words":["swordfish","beta"]},"confidence":0.93}}`
			id := b.Send("browser_action", "browserAction", action)
			b.Expect(`"event":"ack"`, id)
			b.Write(strings.Replace(talk.Frame("browser_action", session, "not a uuid", "browserAction", action), "to_ari", "to_browser", 1))
			b.Expect(`"type":"error"`)

			kept := keptAction(t, env, session, id)
			want := strings.NewReplacer(`"swordfish alpha"`, `"[redacted]"`, `"swordfish"`, `"[redacted]"`, `"beta"`, `"[redacted]"`).Replace(action)
			if keepText == "true" {
				want = action
			}
			if kept != want {
				t.Errorf("the database has\n%s, want\n%s", kept, want)
			}
			_, metrics := call(t, i, "GET", "/metrics")
			if err := i.Stop(); err != nil { // flushes what is exported
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			places := map[string]string{"log": i.Log.String(), "metrics": metrics, "export": exported.String()}
			if keepText == "false" {
				places["database"] = everyFile(t, env["DATA_DIR"])
			}
			for where, text := range places {
				if strings.Contains(text, "swordfish") {
					t.Errorf("%s holds what was said", where)
				}
			}
		})
	}
}

// keptAction waits until an action is in the database.
func keptAction(t *testing.T, env boot.Env, session, message string) (action string) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(env["DATA_DIR"], "telapi.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	poll.Until(t, "the action is kept", func() bool {
		return db.QueryRowContext(t.Context(), "SELECT action FROM browser_actions WHERE session_id = $1 AND message_id = $2", session, message).Scan(&action) == nil
	})
	return action
}

func everyFile(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil || all.Len() == 0 {
		t.Fatalf("read %s: %v", dir, err)
	}
	return all.String()
}
