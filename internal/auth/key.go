package auth

import (
	"context"
	"time"
)

// Key is an API key. Digest is the SHA-256 of its secret, which is not stored.
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

// KeyStore stores API keys. It returns fault.NotFound for an unknown ID.
type KeyStore interface {
	CreateKey(ctx context.Context, k Key) error
	Key(ctx context.Context, id string) (Key, error)
	// Keys returns a team's keys, or all keys if teamID is empty, oldest first.
	Keys(ctx context.Context, teamID string) ([]Key, error)
	// RevokeKey is idempotent: it keeps the time of the first revocation.
	RevokeKey(ctx context.Context, id string, at time.Time) error
	// TouchKeys stores times of last use. An older time never replaces a newer one.
	TouchKeys(ctx context.Context, used map[string]time.Time) error
}
