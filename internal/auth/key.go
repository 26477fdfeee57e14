package auth

import (
	"context"
	"time"
)

// Key is the record of one API key. The secret itself is never kept: Digest is
// the SHA-256 of it.
type Key struct {
	ID         string    `json:"id"`
	TeamID     string    `json:"teamId"`
	Name       string    `json:"name,omitempty"`
	Digest     [32]byte  `json:"-"`
	Scopes     []Scope   `json:"scopes"`
	CreatedAt  time.Time `json:"createdAt"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`  // zero: never
	RevokedAt  time.Time `json:"revokedAt,omitzero"`  // zero: not revoked
	LastUsedAt time.Time `json:"lastUsedAt,omitzero"` // zero: never used
}

// KeyStore keeps key records. Lookups of what is not there fail with
// fault.NotFound.
type KeyStore interface {
	CreateKey(ctx context.Context, k Key) error
	Key(ctx context.Context, id string) (Key, error)
	// Keys lists a team's keys, or everybody's when teamID is empty, oldest first.
	Keys(ctx context.Context, teamID string) ([]Key, error)
	// RevokeKey is idempotent: the first moment of revocation stays.
	RevokeKey(ctx context.Context, id string, at time.Time) error
	// TouchKeys notes last uses; an older moment never replaces a newer one.
	TouchKeys(ctx context.Context, used map[string]time.Time) error
}
