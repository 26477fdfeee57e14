package main

import (
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx
	_ "modernc.org/sqlite"             // driver sqlite
)

// manyRows is the number of rows of each large table. usageRows is the number of rows
// of usage per day of a year.
const (
	manyRows  = 1_000_000
	usageRows = manyRows / 365
	queries   = 21 // per median
)

// rowID is an SQL expression for an ID without its prefix. Numbers start at 1.
const rowID = `'00000000-0000-0000-0000-' || substr(CAST(1000000000000 + i AS TEXT), 2)`

// tables insert rows for the numbers i in the table n. TEAM stands for the team's ID.
var tables = []struct{ name, insert string }{
	{"endpoints", `INSERT INTO endpoints (id, team_id, name, enabled, modes, origins, profile, created_at, updated_at)
		SELECT 'ep_' || ` + rowID + `, 'TEAM', 'Front desk', TRUE, '["chat"]', '[]', '{}', i, i FROM n`},
	{"sessions", `INSERT INTO sessions (id, team_id, endpoint_id, mode, identity, metadata, duplicate_policy, token_id, issued_at, redeem_by, expires_at,
			redeemed_at, last_seen_at, ended_at, ended_as, due_at, settled)
		SELECT 'ses_' || ` + rowID + `, 'TEAM', 'ep_' || ` + rowID + `, 'chat', '{"id":"u-1","name":"Ada"}', '{"page":"/checkout"}', 'replace', ` + rowID + `,
			i, i, i, i, i, i, 'ended', i, TRUE FROM n`},
	{"browser actions", `INSERT INTO browser_actions (session_id, message_id, happened_at, action, number, total_bytes)
		SELECT 'ses_' || ` + rowID + `, ` + rowID + `, i, '{"type":"click","action":"add-to-basket","id":"sku-42","timestamp":1700000000000,"label":"[redacted]"}', 1, 112 FROM n`},
	{"audit", `INSERT INTO audit (id, happened_at, actor_type, actor_id, action, target, team_id, details)
		SELECT 'au_' || ` + rowID + `, i, 'cli', 'root', 'team.update', 'team:TEAM', 'TEAM', '{"name":{"from":"Acme","to":"Acme Ltd"}}' FROM n`},
}

// usageOfDay inserts rows of usage for the day DAY: 137 endpoints with 20 voices.
const usageOfDay = `INSERT INTO tts_usage (team_id, day, endpoint_id, provider, voice, model, characters, cached_characters, requests)
	SELECT 'TEAM', 'DAY', 'ep_' || CAST(i % 137 AS TEXT), 'provider-' || CAST(i / 137 % 4 AS TEXT), 'voice-' || CAST(i / 137 AS TEXT),
		'model-' || CAST(i % 3 AS TEXT), 1000 + i, i, 5 FROM n`

// listed are the measured requests. TEAM stands for the team's ID.
var listed = []struct{ name, path string }{
	{"usage of a year, by month", "/api/v1/usage/tts-characters?from=2025-01-01&to=2025-12-31&interval=month"},
	{"usage of a year, by day", "/api/v1/usage/tts-characters?from=2025-01-01&to=2025-12-31"},
	{"usage of a year, by month and voice", "/api/v1/usage/tts-characters?from=2025-01-01&to=2025-12-31&interval=month&groupBy=voice"},
	{"usage of a year, by month and endpoint", "/api/v1/usage/tts-characters?from=2025-01-01&to=2025-12-31&interval=month&groupBy=endpoint"},
	{"endpoints", "/api/v1/endpoints"},
	{"endpoints, last page", "/api/v1/endpoints?cursor=ep_00000000-0000-0000-0000-000000999900"},
	{"sessions", "/api/v1/admin/sessions?teamId=TEAM"},
	{"sessions, last page", "/api/v1/admin/sessions?teamId=TEAM&cursor=ses_00000000-0000-0000-0000-000000000100"},
	{"sessions that were revoked", "/api/v1/admin/sessions?teamId=TEAM&state=revoked"},
	{"audit log", "/api/v1/admin/audit?teamId=TEAM"},
	{"audit log, last page", "/api/v1/admin/audit?teamId=TEAM&cursor=au_00000000-0000-0000-0000-000000000100"},
}

// growTables measures requests that list rows, with few and with many rows in the
// database.
func growTables(at *site, _ settings) error {
	sqlite := *at
	sqlite.database, sqlite.postgresURL = "SQLite", ""
	for _, on := range []*site{&sqlite, at} {
		t, err := on.startTelapi("SESSION_RETENTION=0s") // the sessions are old
		if err != nil {
			return err
		}
		fmt.Printf("  on %s:\n", on.database)
		err = t.growTables(on.postgresURL != "")
		t.kill()
		if err != nil || at.postgresURL == "" {
			return err
		}
	}
	return nil
}

func (t *telapi) growTables(postgres bool) error {
	few, err := t.medians()
	if err != nil {
		return err
	}
	if err := t.fill(postgres); err != nil {
		return err
	}
	many, err := t.medians()
	if err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	for i, l := range listed {
		fmt.Printf("  %-44s %7.1f ms with few rows, %.1f ms with %d\n", l.name, ms(few[i]), ms(many[i]), manyRows)
	}
	return nil
}

// medians returns the median duration of each request.
func (t *telapi) medians() ([]time.Duration, error) {
	medians := make([]time.Duration, len(listed))
	for i, l := range listed {
		took := make([]time.Duration, queries)
		for j := range took {
			start := time.Now()
			if _, err := t.get(strings.ReplaceAll(l.path, "TEAM", t.team)); err != nil {
				return nil, err
			}
			took[j] = time.Since(start)
		}
		slices.Sort(took)
		medians[i] = took[queries/2]
	}
	return medians, nil
}

// fill inserts many rows into every table and prints how much disk they need.
func (t *telapi) fill(postgres bool) error {
	setting := func(name string) (value string) {
		for _, v := range t.env { // the last one counts
			if rest, found := strings.CutPrefix(v, name+"="); found {
				value = rest
			}
		}
		return value
	}
	driver, source := "pgx", setting("DATABASE_URL")
	size := `SELECT pg_database_size(current_database())`
	if !postgres {
		file := url.URL{Scheme: "file", Path: filepath.Join(setting("DATA_DIR"), "telapi.db"), RawQuery: "_pragma=busy_timeout(60000)&_pragma=synchronous(OFF)"}
		driver, source = "sqlite", file.String()
		size = `SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()`
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	measured := func(name string, insert func() error) error {
		var before, after float64
		err := db.QueryRow(size).Scan(&before)
		fmt.Printf("  %-44s", "disk, "+name)
		if err == nil {
			err = insert()
		}
		if err == nil {
			err = db.QueryRow(size).Scan(&after)
		}
		fmt.Printf(" %7.0f MB for %d rows\n", (after-before)/1e6, manyRows)
		return err
	}
	numbers := func(insert string, count int) error {
		_, err := db.Exec(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, count) +
			strings.ReplaceAll(insert, "TEAM", t.team))
		return err
	}
	for _, table := range tables {
		if err := measured(table.name, func() error { return numbers(table.insert, manyRows) }); err != nil {
			return err
		}
	}
	err = measured("usage and its totals", func() error { return fillUsage(db, numbers) })
	if err == nil {
		_, err = db.Exec("ANALYZE")
	}
	return err
}

// fillUsage inserts a year of usage and computes the totals at the end.
func fillUsage(db *sql.DB, numbers func(insert string, count int) error) error {
	for day := range 365 {
		date := time.Date(2025, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
		if err := numbers(strings.ReplaceAll(usageOfDay, "DAY", date), usageRows); err != nil {
			return err
		}
	}
	for property, column := range map[string]string{"": `''`, "provider": "provider", "voice": "voice", "model": "model", "endpoint": "endpoint_id"} {
		if _, err := db.Exec(fmt.Sprintf(`INSERT INTO usage_totals SELECT team_id, '%s', day, %s, SUM(characters), SUM(cached_characters), SUM(requests)
			FROM tts_usage GROUP BY 1, 3, 4`, property, column)); err != nil {
			return err
		}
	}
	return nil
}
