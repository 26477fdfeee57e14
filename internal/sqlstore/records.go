package sqlstore

import (
	"context"
	"time"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/team"
)

const (
	insertTeam = `INSERT INTO teams (id, name, daily_quota, created_at) VALUES ($1, $2, $3, $4)`
	selectTeam = `SELECT id, name, daily_quota, created_at FROM teams WHERE id = $1`
	listTeams  = `SELECT id, name, daily_quota, created_at FROM teams ORDER BY created_at, id`
	lockTeam   = `UPDATE teams SET name = name WHERE id = $1 RETURNING id, name, daily_quota, created_at`
	updateTeam = `UPDATE teams SET name = $2, daily_quota = $3 WHERE id = $1`
)

func teamFields(t *team.Team) []any {
	return []any{&t.ID, &t.Name, &t.DailyQuota, timestamp{&t.CreatedAt}}
}

// CreateTeam adds a team.
func (s *Store) CreateTeam(ctx context.Context, t team.Team) error {
	return s.exec(ctx, "create", "team", insertTeam, teamFields(&t)...)
}

// Team returns a team.
func (s *Store) Team(ctx context.Context, id string) (team.Team, error) {
	return get(ctx, s, "team", teamFields, selectTeam, id)
}

// Teams returns all teams, oldest first.
func (s *Store) Teams(ctx context.Context) ([]team.Team, error) {
	return list(ctx, s, "teams", teamFields, listTeams)
}

// UpdateTeam changes a team's name and quota.
func (s *Store) UpdateTeam(ctx context.Context, id string, change func(*team.Team)) (team.Team, error) {
	return update(ctx, s, "team", teamFields, lockTeam, id, func(t *team.Team) (string, []any, error) {
		change(t)
		return updateTeam, []any{id, t.Name, t.DailyQuota}, nil
	})
}

const (
	keyColumns = `id, team_id, name, digest, scopes, created_at, expires_at, revoked_at, last_used_at`

	insertKey    = `INSERT INTO api_keys (` + keyColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectKey    = `SELECT ` + keyColumns + ` FROM api_keys WHERE id = $1`
	listKeys     = `SELECT ` + keyColumns + ` FROM api_keys ORDER BY created_at, id`
	listTeamKeys = `SELECT ` + keyColumns + ` FROM api_keys WHERE team_id = $1 ORDER BY created_at, id`
	revokeKey    = `UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $2) WHERE id = $1`
	touchKey     = `UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)`
)

func keyFields(k *auth.Key) []any {
	return []any{&k.ID, &k.TeamID, &k.Name, digest{&k.Digest}, asJSON(&k.Scopes),
		timestamp{&k.CreatedAt}, timestamp{&k.ExpiresAt}, timestamp{&k.RevokedAt}, timestamp{&k.LastUsedAt}}
}

// CreateKey adds an API key.
func (s *Store) CreateKey(ctx context.Context, k auth.Key) error {
	return s.exec(ctx, "create", "API key", insertKey, keyFields(&k)...)
}

// Key returns an API key, even if it is revoked or expired.
func (s *Store) Key(ctx context.Context, id string) (auth.Key, error) {
	return get(ctx, s, "API key", keyFields, selectKey, id)
}

// Keys returns a team's keys, or all keys if teamID is empty, oldest first.
func (s *Store) Keys(ctx context.Context, teamID string) ([]auth.Key, error) {
	if teamID == "" {
		return list(ctx, s, "API keys", keyFields, listKeys)
	}
	return list(ctx, s, "API keys", keyFields, listTeamKeys, teamID)
}

// RevokeKey stores the time of the first revocation.
func (s *Store) RevokeKey(ctx context.Context, id string, at time.Time) error {
	return s.exec(ctx, "revoke", "API key", revokeKey, id, at.UnixMilli())
}

// TouchKeys stores the times of last use and ignores unknown keys.
func (s *Store) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	return s.touch(ctx, "update last use of API keys", touchKey, used)
}

const (
	endpointColumns = `id, team_id, name, enabled, modes, origins, profile, created_at, updated_at`

	insertEndpoint    = `INSERT INTO endpoints (` + endpointColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectEndpoint    = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id = $1`
	listEndpoints     = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id > $1 ORDER BY id LIMIT $2`
	listTeamEndpoints = `SELECT ` + endpointColumns + ` FROM endpoints WHERE team_id = $1 AND id > $2 ORDER BY id LIMIT $3`
	lockEndpoint      = `UPDATE endpoints SET name = name WHERE id = $1 RETURNING ` + endpointColumns
	updateEndpoint    = `UPDATE endpoints SET name = $2, enabled = $3, modes = $4, origins = $5, profile = $6, updated_at = $7 WHERE id = $1`
)

func endpointFields(e *endpoint.Endpoint) []any {
	return []any{&e.ID, &e.TeamID, &e.Name, &e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile),
		timestamp{&e.CreatedAt}, timestamp{&e.UpdatedAt}}
}

// CreateEndpoint adds an endpoint to its team.
func (s *Store) CreateEndpoint(ctx context.Context, e endpoint.Endpoint) error {
	return s.exec(ctx, "create", "endpoint", insertEndpoint, endpointFields(&e)...)
}

// Endpoint returns an endpoint of any team.
func (s *Store) Endpoint(ctx context.Context, id string) (endpoint.Endpoint, error) {
	return get(ctx, s, "endpoint", endpointFields, selectEndpoint, id)
}

// Endpoints returns a page of a team's endpoints, or of all endpoints if teamID
// is empty.
func (s *Store) Endpoints(ctx context.Context, teamID, after string, limit int) ([]endpoint.Endpoint, error) {
	if teamID == "" {
		return list(ctx, s, "endpoints", endpointFields, listEndpoints, after, limit)
	}
	return list(ctx, s, "endpoints", endpointFields, listTeamEndpoints, teamID, after, limit)
}

// UpdateEndpoint changes everything except an endpoint's ID, team and creation
// time.
func (s *Store) UpdateEndpoint(ctx context.Context, id string, change func(*endpoint.Endpoint) error) (endpoint.Endpoint, error) {
	return update(ctx, s, "endpoint", endpointFields, lockEndpoint, id, func(e *endpoint.Endpoint) (string, []any, error) {
		fixed := *e
		err := change(e)
		e.ID, e.TeamID, e.CreatedAt = fixed.ID, fixed.TeamID, fixed.CreatedAt
		return updateEndpoint, []any{id, e.Name, e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile), timestamp{&e.UpdatedAt}}, err
	})
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
	return s.exec(ctx, "save", "setting", saveSetting, name, string(value), time.Now().UnixMilli())
}
