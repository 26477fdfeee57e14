package sqlstore

import (
	"context"
	"time"

	"telapi/internal/auth"
)

var _ auth.KeyStore = (*Store)(nil)

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
