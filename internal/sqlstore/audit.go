package sqlstore

import (
	"context"
	"database/sql"
	"math"
	"time"

	"telapi/internal/audit"
)

const (
	auditColumns = `id, happened_at, actor_type, actor_id, action, target, team_id, details`

	insertAudit = `INSERT INTO audit (` + auditColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`
	deleteAudit = `DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < $1 ORDER BY id LIMIT $2)`
)

// auditFields returns pointers to the fields of an entry in the order of auditColumns.
func auditFields(e *audit.Entry) []any {
	return []any{&e.ID, timestamp{&e.At}, &e.Actor.Type, &e.Actor.ID, &e.Action, &e.Target, &e.TeamID, asJSON(&e.Details)}
}

// writeAudit adds entries in the transaction of the change that they record.
func writeAudit(ctx context.Context, tx *sql.Tx, entries []audit.Entry) error {
	for _, e := range entries {
		if _, err := execRows(ctx, tx, insertAudit, auditFields(&e)...); err != nil {
			return err
		}
	}
	return nil
}

// AddAuditEntries implements audit.Store.
func (s *Store) AddAuditEntries(ctx context.Context, entries ...audit.Entry) error {
	return s.inTx(ctx, "add audit entries", func(ctx context.Context, tx *sql.Tx) error { return writeAudit(ctx, tx, entries) })
}

// DeleteAuditEntries implements audit.Store.
func (s *Store) DeleteAuditEntries(ctx context.Context, before time.Time, limit int) (deleted int64, err error) {
	return s.execBatch(ctx, "delete audit entries", deleteAudit, []any{audit.FirstID(before), limit})
}

// AuditEntries implements audit.Store.
func (s *Store) AuditEntries(ctx context.Context, q audit.Query) ([]audit.Entry, error) {
	teamID, _ := q.Teams.Team()
	from, to := int64(0), int64(math.MaxInt64)
	if !q.From.IsZero() {
		from = q.From.UnixMilli()
	}
	if !q.To.IsZero() {
		to = q.To.UnixMilli()
	}
	return list(ctx, s, "audit entries", auditFields, listAudit(q), teamID, from, to, q.After, q.Limit)
}

// listAudit returns a query that uses all its parameters, because PostgreSQL needs
// their types.
func listAudit(q audit.Query) string {
	after := `$4 = ''`
	if q.After != "" {
		after = `id < $4`
	}
	return `SELECT ` + auditColumns + ` FROM audit WHERE ` + teamsCondition(q.Teams) + ` AND happened_at >= $2 AND happened_at < $3 AND ` + after + ` ORDER BY id DESC LIMIT $5`
}
