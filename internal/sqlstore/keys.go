package sqlstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

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

// CreateKey adds a key record.
func (s *Store) CreateKey(ctx context.Context, k auth.Key) error {
	scopes, err := json.Marshal(k.Scopes)
	if err != nil {
		return fmt.Errorf("encode scopes: %w", err)
	}
	return s.change(ctx, "create", "API key", insertKey, k.ID, k.TeamID, k.Name, hex.EncodeToString(k.Digest[:]), string(scopes),
		millis(k.CreatedAt), millis(k.ExpiresAt), millis(k.RevokedAt), millis(k.LastUsedAt))
}

// Key reads one key record, revoked and expired ones included.
func (s *Store) Key(ctx context.Context, id string) (auth.Key, error) {
	return one(ctx, s, "API key", scanKey, selectKey, id)
}

// Keys lists a team's keys, or everybody's when teamID is empty, oldest first.
func (s *Store) Keys(ctx context.Context, teamID string) ([]auth.Key, error) {
	if teamID == "" {
		return list(ctx, s, "API keys", scanKey, listKeys)
	}
	return list(ctx, s, "API keys", scanKey, listTeamKeys, teamID)
}

// RevokeKey notes the first moment of revocation.
func (s *Store) RevokeKey(ctx context.Context, id string, at time.Time) error {
	return s.change(ctx, "revoke", "API key", revokeKey, id, at.UnixMilli())
}

// TouchKeys notes last uses. Keys it does not know are passed over.
func (s *Store) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	sets := make([][]any, 0, len(used))
	for _, id := range slices.Sorted(maps.Keys(used)) {
		sets = append(sets, []any{id, used[id].UnixMilli()})
	}
	return s.changeAll(ctx, "note last uses of API keys", touchKey, sets)
}

func scanKey(r row) (k auth.Key, err error) {
	var digest, scopes string
	var created, expires, revoked, used *int64
	if err := r.Scan(&k.ID, &k.TeamID, &k.Name, &digest, &scopes, &created, &expires, &revoked, &used); err != nil {
		return k, err
	}
	if n, err := hex.Decode(k.Digest[:], []byte(digest)); err != nil || n != len(k.Digest) {
		return k, fmt.Errorf("the digest of API key %s is damaged", k.ID)
	}
	if err := json.Unmarshal([]byte(scopes), &k.Scopes); err != nil {
		return k, fmt.Errorf("the scopes of API key %s are damaged: %w", k.ID, err)
	}
	k.CreatedAt, k.ExpiresAt, k.RevokedAt, k.LastUsedAt = moment(created), moment(expires), moment(revoked), moment(used)
	return k, nil
}
