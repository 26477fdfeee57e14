package sqlstore

import (
	"context"
	"database/sql"
	"time"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
)

const (
	teamColumns = `id, name, daily_quota, disabled, created_at`

	insertTeam = `INSERT INTO teams (` + teamColumns + `) VALUES ($1, $2, $3, $4, $5)`
	selectTeam = `SELECT ` + teamColumns + ` FROM teams WHERE id = $1`
	// $1 is the cursor, the ID of a team. Without one, the page starts at time 0. If its team was
	// deleted, the comparison is NULL and no row matches.
	listTeams = `SELECT ` + teamColumns + ` FROM teams
		WHERE (created_at, id) > (COALESCE((SELECT created_at FROM teams WHERE id = $1), CASE $1 WHEN '' THEN 0 END), $1) ORDER BY created_at, id LIMIT $2`
	// An update without effect locks the row on both databases.
	lockTeam   = `UPDATE teams SET name = name WHERE id = $1 RETURNING ` + teamColumns
	updateTeam = `UPDATE teams SET name = $2, daily_quota = $3, disabled = $4 WHERE id = $1`

	// ended_as and ended_at are set together. Each statement checks the one that its index has.
	revokeSessionsOfTeam     = `UPDATE sessions SET ended_at = $2, ended_as = 'revoked' WHERE team_id = $1 AND ended_as IS NULL`
	revokeSessionsOfEndpoint = `UPDATE sessions SET ended_at = $2, ended_as = 'revoked' WHERE endpoint_id = $1 AND ended_at IS NULL`
)

func teamFields(t *team.Team) []any {
	return []any{&t.ID, &t.Name, &t.DailyQuota, &t.Disabled, timestamp{&t.CreatedAt}}
}

// CreateTeam adds a team.
func (s *Store) CreateTeam(ctx context.Context, t team.Team, entries ...audit.Entry) error {
	return s.exec(ctx, "create", "team", entries, insertTeam, teamFields(&t)...)
}

// Team returns a team.
func (s *Store) Team(ctx context.Context, id string) (team.Team, error) {
	return get(ctx, s, "team", teamFields, selectTeam, id)
}

// Teams returns a page of all teams, oldest first.
func (s *Store) Teams(ctx context.Context, q page.Query) ([]team.Team, error) {
	return list(ctx, s, "teams", teamFields, listTeams, q.After, q.Limit)
}

// UpdateTeam stores what change makes of a team, except its ID and creation time. If it disables
// the team, it also revokes the team's sessions.
func (s *Store) UpdateTeam(ctx context.Context, id string, change func(*team.Team) ([]audit.Entry, error)) (team.Team, error) {
	return update(ctx, s, "team", teamFields, lockTeam, id, func(ctx context.Context, tx *sql.Tx, t *team.Team) ([]audit.Entry, error) {
		before := *t
		entries, err := change(t)
		t.ID, t.CreatedAt = before.ID, before.CreatedAt
		if err == nil && t.Disabled && !before.Disabled {
			_, err = execRows(ctx, tx, revokeSessionsOfTeam, id, time.Now().UnixMilli())
		}
		if err == nil {
			_, err = execRows(ctx, tx, updateTeam, id, t.Name, t.DailyQuota, t.Disabled)
		}
		return entries, err
	})
}

const (
	keyColumns = `id, team_id, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at`

	insertKey = `INSERT INTO api_keys (` + keyColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectKey = `SELECT ` + keyColumns + ` FROM api_keys WHERE id = $1`
	keyPage   = ` AND (created_at, id) > (COALESCE((SELECT created_at FROM api_keys WHERE id = $2), CASE $2 WHEN '' THEN 0 END), $2)
		ORDER BY created_at, id LIMIT $3`

	revokeKey = `UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $2) WHERE id = $1`
	countKeys = `SELECT count(*) FROM api_keys WHERE team_id = $1 AND revoked_at IS NULL`
	// Keeps the newest $2 revoked keys. SQLite has no OFFSET without LIMIT: if there are more
	// than 1000 older ones, the next call deletes the rest.
	trimKeys = `DELETE FROM api_keys WHERE id IN
		(SELECT id FROM api_keys WHERE team_id = $1 AND revoked_at IS NOT NULL ORDER BY created_at DESC, id DESC LIMIT 1000 OFFSET $2)`
	touchKey = `UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)`
)

func keyFields(k *auth.Key) []any {
	return []any{&k.ID, &k.TeamID, &k.Name, digest{&k.Digest}, asJSON(&k.Scopes),
		timestamp{&k.CreatedAt}, timestamp{&k.ExpiresAt}, timestamp{&k.RevokedAt}, timestamp{&k.LastUsedAt}}
}

// CreateKey adds an API key to its team and deletes old revoked ones.
func (s *Store) CreateKey(ctx context.Context, k auth.Key, entries ...audit.Entry) error {
	return s.insertLimited(ctx, "API key", k.TeamID, countKeys, auth.MaxKeys, entries, func(ctx context.Context, tx *sql.Tx) error {
		_, err := execRows(ctx, tx, trimKeys, k.TeamID, auth.MaxKeys)
		if err == nil {
			_, err = execRows(ctx, tx, insertKey, keyFields(&k)...)
		}
		return err
	})
}

// insertLimited adds a record to a team in a transaction, unless countQuery finds limit or more of
// them. It locks the team, so that concurrent transactions count each other's records.
func (s *Store) insertLimited(ctx context.Context, kind, teamID, countQuery string, limit int, entries []audit.Entry, insert func(context.Context, *sql.Tx) error) error {
	return s.inTx(ctx, "create "+kind, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := queryRow(ctx, tx, "team", teamFields, lockTeam, teamID); err != nil {
			return err
		}
		n, err := queryRow(ctx, tx, kind, column[int], countQuery, teamID)
		if err != nil {
			return err
		}
		if n >= limit {
			var issues fault.Issues
			issues.Add("", fault.IssueTooMany, "A team can have at most %d %ss.", limit, kind)
			return issues.Err()
		}
		if err := insert(ctx, tx); err != nil {
			return constraintError(err, kind)
		}
		return writeAudit(ctx, tx, entries)
	})
}

// Key returns an API key, even if it is revoked or expired.
func (s *Store) Key(ctx context.Context, id string) (auth.Key, error) {
	return get(ctx, s, "API key", keyFields, selectKey, id)
}

// Keys implements auth.KeyStore.
func (s *Store) Keys(ctx context.Context, teams page.Teams, q page.Query) ([]auth.Key, error) {
	teamID, _ := teams.Team()
	return list(ctx, s, "API keys", keyFields, listKeys(teams), teamID, q.After, q.Limit)
}

func listKeys(teams page.Teams) string {
	return `SELECT ` + keyColumns + ` FROM api_keys WHERE ` + teamsCondition(teams) + keyPage
}

// RevokeKey stores the time of the first revocation.
func (s *Store) RevokeKey(ctx context.Context, id string, at time.Time, entries ...audit.Entry) error {
	return s.exec(ctx, "revoke", "API key", entries, revokeKey, id, at.UnixMilli())
}

// TouchKeys stores the times of last use and ignores unknown keys.
func (s *Store) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	return s.touch(ctx, "update last use of API keys", touchKey, used)
}

const (
	endpointColumns = `id, team_id, name, enabled, modes, origins, profile, created_at, updated_at`

	insertEndpoint = `INSERT INTO endpoints (` + endpointColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectEndpoint = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id = $1`
	countEndpoints = `SELECT count(*) FROM endpoints WHERE team_id = $1`
	lockEndpoint   = `UPDATE endpoints SET name = name WHERE id = $1 RETURNING ` + endpointColumns
	updateEndpoint = `UPDATE endpoints SET name = $2, enabled = $3, modes = $4, origins = $5, profile = $6, updated_at = $7 WHERE id = $1`
)

func endpointFields(e *team.Endpoint) []any {
	return []any{&e.ID, &e.TeamID, &e.Name, &e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile),
		timestamp{&e.CreatedAt}, timestamp{&e.UpdatedAt}}
}

// CreateEndpoint adds an endpoint to its team.
func (s *Store) CreateEndpoint(ctx context.Context, e team.Endpoint, entries ...audit.Entry) error {
	return s.insertLimited(ctx, "endpoint", e.TeamID, countEndpoints, team.MaxEndpoints, entries, func(ctx context.Context, tx *sql.Tx) error {
		_, err := execRows(ctx, tx, insertEndpoint, endpointFields(&e)...)
		return err
	})
}

// Endpoint returns an endpoint of any team.
func (s *Store) Endpoint(ctx context.Context, id string) (team.Endpoint, error) {
	return get(ctx, s, "endpoint", endpointFields, selectEndpoint, id)
}

// Endpoints implements team.EndpointStore.
func (s *Store) Endpoints(ctx context.Context, teams page.Teams, q page.Query) ([]team.Endpoint, error) {
	teamID, _ := teams.Team()
	return list(ctx, s, "endpoints", endpointFields, listEndpoints(teams), teamID, q.After, q.Limit)
}

func listEndpoints(teams page.Teams) string {
	return `SELECT ` + endpointColumns + ` FROM endpoints WHERE ` + teamsCondition(teams) + ` AND id > $2 ORDER BY id LIMIT $3`
}

// UpdateEndpoint stores what change makes of an endpoint, except its ID, team and creation
// time.
func (s *Store) UpdateEndpoint(ctx context.Context, id string, change func(*team.Endpoint) ([]audit.Entry, error)) (team.Endpoint, error) {
	return update(ctx, s, "endpoint", endpointFields, lockEndpoint, id, func(ctx context.Context, tx *sql.Tx, e *team.Endpoint) ([]audit.Entry, error) {
		before := *e
		entries, err := change(e)
		e.ID, e.TeamID, e.CreatedAt = before.ID, before.TeamID, before.CreatedAt
		if err == nil {
			_, err = execRows(ctx, tx, updateEndpoint, id, e.Name, e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile), timestamp{&e.UpdatedAt})
		}
		return entries, err
	})
}

// DeleteEndpoint deletes an endpoint and revokes its sessions, unless check fails.
func (s *Store) DeleteEndpoint(ctx context.Context, id string, check func(team.Endpoint) ([]audit.Entry, error)) error {
	_, err := update(ctx, s, "endpoint", endpointFields, lockEndpoint, id, func(ctx context.Context, tx *sql.Tx, e *team.Endpoint) ([]audit.Entry, error) {
		entries, err := check(*e)
		if err == nil {
			_, err = execRows(ctx, tx, revokeSessionsOfEndpoint, id, time.Now().UnixMilli())
		}
		if err == nil {
			_, err = execRows(ctx, tx, `DELETE FROM endpoints WHERE id = $1`, id)
		}
		return entries, err
	})
	return err
}

const (
	selectSetting = `SELECT value FROM settings WHERE name = $1`
	saveSetting   = `INSERT INTO settings (name, value, updated_at) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at`
)

// Setting returns a named value. ok is false if it was never saved.
func (s *Store) Setting(ctx context.Context, name string) (value []byte, ok bool, err error) {
	value, err = get(ctx, s, "setting", column[[]byte], selectSetting, name)
	if fault.Is(err, fault.NotFound) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// SaveSetting stores a named value. The value must be text.
func (s *Store) SaveSetting(ctx context.Context, name string, value []byte) error {
	return s.exec(ctx, "save", "setting", nil, saveSetting, name, string(value), time.Now().UnixMilli())
}

// ChangeSetting stores a named value and an audit entry in one transaction, which it
// commits if confirm succeeds.
func (s *Store) ChangeSetting(ctx context.Context, name string, value []byte, e audit.Entry, confirm func(context.Context) error) error {
	return s.inTx(ctx, "change setting", func(ctx context.Context, tx *sql.Tx) error {
		_, err := execRows(ctx, tx, saveSetting, name, string(value), time.Now().UnixMilli())
		if err == nil {
			err = writeAudit(ctx, tx, []audit.Entry{e})
		}
		if err == nil {
			err = confirm(ctx)
		}
		return err
	})
}
