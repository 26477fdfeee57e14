package auth

import (
	"context"
	"fmt"
	"slices"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/redact"
)

// topicPrefix, followed by a key's ID, is announced when the key changes.
const topicPrefix = "key:"

// KeyRegistry creates and revokes API keys.
type KeyRegistry struct {
	Store    KeyStore
	Announce cache.Announcer
	Now      func() time.Time
}

// Create creates a key. The returned secret cannot be read again later.
func (r *KeyRegistry) Create(ctx context.Context, teamID, name string, scopes []Scope, expiresAt time.Time) (Key, redact.Secret, error) {
	var issues fault.Issues
	if len(scopes) == 0 {
		issues.Add("/scopes", fault.IssueRequired, "Give at least one scope of %s.", fault.Join(Scopes))
	}
	for i, s := range scopes {
		fault.CheckOneOf(&issues, fault.Pointer("/scopes", i), s, Scopes)
	}
	issues.CheckName("/name", name, 100)
	if !expiresAt.IsZero() && !expiresAt.After(r.Now()) {
		issues.Add("/expiresAt", fault.IssueValue, "The expiry is in the past.")
	}
	if err := issues.Err(); err != nil {
		return Key{}, "", err
	}
	id, full, digest := newSecret()
	scopes = slices.Compact(slices.Sorted(slices.Values(scopes)))
	k := Key{ID: id, TeamID: teamID, Name: name, Digest: digest, Scopes: scopes, CreatedAt: r.Now(), ExpiresAt: expiresAt}
	if err := r.Store.CreateKey(ctx, k); err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return k, full, nil
}

// Revoke revokes a key. It announces the change after the commit, so that an
// instance that reads the key again does not find the old version. If the
// announcement fails, instances may accept the key until their caches expire.
func (r *KeyRegistry) Revoke(ctx context.Context, id string) error {
	if err := r.Store.RevokeKey(ctx, id, r.Now()); err != nil {
		return fmt.Errorf("revoke key: %w", err)
	}
	if err := r.Announce.Announce(ctx, topicPrefix+id); err != nil {
		return fmt.Errorf("the key is revoked, but announcing it failed: running instances may accept the key for up to %s: %w", cache.TTL, err)
	}
	return nil
}
