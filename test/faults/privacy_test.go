package faults

import (
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // to look into the database

	"telapi/callruntime/wire"
	"telapi/test/poll"
	"telapi/test/talk"
)

// collector takes what is exported.
type collector struct {
	mu   sync.Mutex
	text strings.Builder
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.WriteString(r.URL.Path + "\n")
	c.text.Write(body)
}

func (c *collector) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// dump is everything that is in a PostgreSQL database.
func dump(t *testing.T, url string) string {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	column := func(query string) (values []string) {
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var v string
			if err := rows.Scan(&v); err != nil {
				t.Fatal(err)
			}
			values = append(values, v)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return values
	}
	var all strings.Builder
	for _, table := range column("SELECT quote_ident(table_name) FROM information_schema.tables WHERE table_schema = 'public'") {
		all.WriteString(table + "\n" + strings.Join(column("SELECT t::text FROM "+table+" t"), "\n"))
	}
	return all.String()
}

// What is said in a conversation, also in frames that are refused or that the
// store cannot take, is written nowhere but where it is going.
func TestConversationTextIsNotLeaked(t *testing.T) {
	t.Parallel()
	const secret = "swordfish"
	for keep, inDatabase := range map[string]bool{"": false, "false": false, "true": true} {
		t.Run("ENABLE_PII_LOGGING="+keep, func(t *testing.T) {
			t.Parallel()
			exported := &collector{}
			otlp := httptest.NewServer(exported)
			defer otlp.Close()
			env, redis := realStores(t)
			env["LOG_LEVEL"], env["OTEL_ENABLED"], env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "debug", "true", otlp.URL
			if keep != "" {
				env["ENABLE_PII_LOGGING"] = keep
			}
			p := newPlace(t, env)
			b, token, ch := p.conversation(t)
			b.Expect(`"event":"ack"`, b.Chat(secret))
			b.Expect(`"event":"ack"`, b.Send("browser_action", "browserAction",
				`{"type":"voice","transcript":"`+secret+`","deep":[{"er":{"words":["`+secret+`",{"name":["`+secret+`"]}]}}]}`))
			b.Expect(`"event":"ack"`, b.Send("action_result", "actionResult", `{"text":"`+secret+`"}`))
			talk.SendChat(t, ch, `{"text":"`+secret+`"}`)
			b.Expect(secret)
			b.Write(`{"type":"chat","chat":{"text":"` + secret + `"}}`)
			b.Expect(`"type":"error"`)
			b.Write(`{"chat":{"text":"` + secret + `"}`)
			b.Expect(`"type":"error"`)
			for heard := 0; heard < 3; {
				if e := talk.Receive(t, ch); e.Kind == wire.KindFrame && strings.Contains(string(e.Message.Chat)+string(e.Message.BrowserAction)+string(e.Message.ActionResult), secret) {
					heard++
				}
			}
			poll.Until(t, "the action is kept", func() bool { return strings.Contains(dump(t, env["DATABASE_URL"]), "voice") })

			redis.Kill()
			b.Chat(secret)
			b.Expect(`"type":"error"`, `"code":"SERVICE_UNAVAILABLE"`)
			if _, resp, err := talk.Dial(t, p.Instance, token, ""); err == nil || resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("a handshake without a store: %v", err)
			}
			_, _, metrics := ask(t, p.Instance, http.MethodGet, "/metrics")
			if err := p.Stop(); err != nil { // writes and exports what is left
				t.Fatal(err)
			}
			for _, path := range []string{"/v1/traces", "/v1/logs", "/v1/metrics"} {
				if !strings.Contains(exported.String(), path) {
					t.Errorf("nothing was exported to %s", path)
				}
			}
			for where, text := range map[string]string{"the log": p.Log.String(), "what is exported": exported.String(), "/metrics": metrics} {
				for what, hidden := range map[string]string{"what was said": secret, "the token": token} {
					if at := strings.Index(text, hidden); at >= 0 {
						t.Errorf("%s holds %s: …%.300q", where, what, text[max(0, at-150):])
					}
				}
			}
			rows := dump(t, env["DATABASE_URL"])
			if strings.Contains(rows, secret) != inDatabase {
				t.Errorf("the database holds what was said: %v", !inDatabase)
			}
			if strings.Contains(rows, token) {
				t.Error("the database holds the token")
			}
		})
	}
}
