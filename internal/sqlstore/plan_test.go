package sqlstore

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/internal/audit"
	"telapi/internal/page"
	"telapi/internal/session"
	"telapi/internal/tenant"
)

var placeholder = regexp.MustCompile(`\$\d+`)

func TestNoQueryScansATable(t *testing.T) {
	queries := []string{
		selectTeam, listTeams, updateTeam, selectKey, revokeKey, countKeys, trimKeys, touchKey,
		selectEndpoint, countEndpoints, updateEndpoint, selectSetting, redeemSession, endSession, touchSession,
		overdueSessions, expireSession, staleSessions, unsettledSessions, deleteSessions, selectKeyRecord, insertAction,
		revokeSessionsOfTeam, revokeSessionsOfEndpoint, recordingsAfter, expiredRecordings, unusedRecordings, deleteReports, deleteAudit,
	}
	for _, interval := range usageIntervals {
		queries = append(queries, fmt.Sprintf(sumUsage, interval))
	}
	for _, teams := range []tenant.Filter{allTeams, tenant.Only("t1")} {
		queries = append(queries, listKeys(teams), listEndpoints(teams))
		for _, after := range []string{"", "x"} {
			q := page.Query{After: after}
			queries = append(queries, listAudit(audit.Query{Teams: teams, Query: q}), listSessions(session.Query{Teams: teams, Query: q}))
			for state := range stateConditions {
				queries = append(queries, listSessions(session.Query{Teams: teams, State: state, Query: q}))
			}
		}
	}
	onEachEngine(t, func(t *testing.T, s *Store) {
		explain := explainSQLite
		if s.engine.dataDir == "" {
			explain = explainPostgres
		}
		for _, query := range queries {
			parameters := slices.Compact(slices.Sorted(slices.Values(placeholder.FindAllString(query, -1))))
			for _, step := range explain(t, s, query, len(parameters)) {
				t.Errorf("%s\nneeds %q, want only index lookups", query, step)
			}
		}
	})
}

func TestStateOfTeamIsIndexed(t *testing.T) {
	s := open(t, Options{DataDir: t.TempDir()})
	must(t, s.Migrate(t.Context()))
	for _, state := range []session.State{session.Issued, session.Connected, session.Ended, session.Revoked} {
		query := listSessions(session.Query{Teams: tenant.Only("t1"), State: state})
		var id, parent, unused int
		var step string
		must(t, s.write.QueryRowContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, 4)...).Scan(&id, &parent, &unused, &step))
		if !strings.Contains(step, "sessions_by_state (team_id=? AND ended_as=?") {
			t.Errorf("%s sessions need %q, want the index sessions_by_state", state, step)
		}
	}
}

// sorting are the queries that sort the rows that an index found.
var sorting = []string{staleSessions, expiredRecordings, deleteReports}

// explainSQLite returns the steps of a query's plan that read a whole table, or sort.
func explainSQLite(t *testing.T, s *Store, query string, parameters int) (scans []string) {
	type planStep struct {
		id, parent, unused int
		detail             string
	}
	steps, err := queryAll(t.Context(), s.write, func(p *planStep) []any { return []any{&p.id, &p.parent, &p.unused, &p.detail} },
		"EXPLAIN QUERY PLAN "+query, make([]any, parameters)...)
	must(t, err)
	for _, step := range steps {
		inOrder := strings.Contains(step.detail, " USING INDEX ") && strings.Contains(query, "LIMIT") // reads one page
		oneRow := step.detail == "SCAN CONSTANT ROW" || step.detail == "SCAN newest"
		sorts := strings.Contains(step.detail, "ORDER BY") && !slices.Contains(sorting, query)
		if sorts || strings.HasPrefix(step.detail, "SCAN") && !inOrder && !oneRow {
			scans = append(scans, step.detail)
		}
	}
	return scans
}

// explainPostgres returns the steps of a query's plan that read a whole table although
// such steps are disabled, because no index is suitable, or a whole index.
func explainPostgres(t *testing.T, s *Store, query string, parameters int) (scans []string) {
	tx, err := s.write.BeginTx(t.Context(), nil)
	must(t, err)
	defer tx.Rollback()
	for _, statement := range []string{"SET LOCAL enable_seqscan = off", "SET LOCAL plan_cache_mode = force_generic_plan", "PREPARE explained AS " + query} {
		_, err := tx.ExecContext(t.Context(), statement)
		must(t, err)
	}
	steps, err := queryAll(t.Context(), tx, column[string],
		"EXPLAIN EXECUTE explained("+strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ")+")")
	must(t, err)
	_, err = tx.ExecContext(t.Context(), "DEALLOCATE explained")
	must(t, err)
	for i, step := range steps {
		wholeIndex := !strings.Contains(query, "LIMIT") && strings.Contains(step, "Index Scan") && !strings.Contains(steps[i+1], "Index Cond")
		if wholeIndex || strings.Contains(step, "Seq Scan") {
			scans = append(scans, strings.TrimSpace(step))
		}
	}
	return scans
}
