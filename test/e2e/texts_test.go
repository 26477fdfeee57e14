package e2e

import (
	"database/sql"
	"maps"
	"net/http"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // for dump

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// dump returns all rows of a PostgreSQL database.
func dump(t *testing.T, url string) string {
	t.Helper()
	db, err := sql.Open("pgx", url)
	testkit.Must(t, err)
	defer func() { _ = db.Close() }()
	column := func(query string) (values []string) {
		rows, err := db.QueryContext(t.Context(), query)
		testkit.Must(t, err)
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var v string
			testkit.Must(t, rows.Scan(&v))
			values = append(values, v)
		}
		testkit.Must(t, rows.Err())
		return values
	}
	var all strings.Builder
	for _, table := range column("SELECT quote_ident(table_name) FROM information_schema.tables WHERE table_schema = 'public'") {
		all.WriteString(table + "\n" + strings.Join(column("SELECT t::text FROM "+table+" t"), "\n"))
	}
	return all.String()
}

// The text of a conversation never appears in logs, metrics or traces, not even
// that of frames which are invalid or cannot be stored. It is stored in the
// database only with ENABLE_PII_LOGGING.
func TestConversationTextIsNotLeaked(t *testing.T) {
	t.Parallel()
	const secret = "swordfish"
	for setting, inDatabase := range map[string]bool{"": false, "true": true} {
		t.Run("ENABLE_PII_LOGGING="+setting, func(t *testing.T) {
			t.Parallel()
			collector := harness.StartCollector(t)
			env, redis := harness.RealStores(t)
			env["LOG_LEVEL"] = "debug"
			maps.Copy(env, collector.Env())
			if setting != "" {
				env["ENABLE_PII_LOGGING"] = setting
			}
			svc := startService(t, env)
			b, token, ch := svc.conversation(t)
			b.Expect(`"event":"ack"`, b.Chat(secret))
			b.Expect(`"event":"ack"`, b.Send("browser_action", "browserAction",
				`{"type":"voice","transcript":"`+secret+`","deep":[{"er":{"words":["`+secret+`",{"name":["`+secret+`"]}]}}]}`))
			b.Expect(`"event":"ack"`, b.Send("action_result", "actionResult", `{"text":"`+secret+`"}`))
			harness.SendChat(t, ch, `{"text":"`+secret+`"}`)
			b.Expect(secret)
			b.Write(`{"type":"chat","chat":{"text":"` + secret + `"}}`)
			b.Expect(`"type":"error"`)
			b.Write(`{"chat":{"text":"` + secret + `"}`)
			b.Expect(`"type":"error"`)
			for received := 0; received < 3; {
				if e := harness.Receive(t, ch); e.Kind == wire.KindFrame && strings.Contains(string(e.Message.Chat)+string(e.Message.BrowserAction)+string(e.Message.ActionResult), secret) {
					received++
				}
			}
			testkit.Until(t, "the action is stored", func() bool { return strings.Contains(dump(t, env["DATABASE_URL"]), "voice") })

			redis.Kill()
			b.Chat(secret)
			b.Expect(`"type":"error"`, `"code":"SERVICE_UNAVAILABLE"`)
			if _, resp, err := harness.Dial(t, svc.Instance, token, ""); err == nil || resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("handshake without Redis: %v, want 503", err)
			}
			_, metrics := svc.Call(t, http.MethodGet, "/metrics")
			testkit.Must(t, svc.Stop()) // flushes the database and the exporters
			testkit.Contains(t, "export", collector.String(), "/v1/traces", "/v1/logs", "/v1/metrics")
			wantNotLeaked(t, map[string]string{"log": svc.Log.String(), "export": collector.String(), "metrics": metrics}, map[string]string{"text": secret, "token": token})
			rows := dump(t, env["DATABASE_URL"])
			if strings.Contains(rows, secret) != inDatabase {
				t.Errorf("the database contains the text: %v, want %v", !inDatabase, inDatabase)
			}
			if strings.Contains(rows, token) {
				t.Error("the database contains the token")
			}
		})
	}
}
