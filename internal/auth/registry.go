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

// topicPrefix begins the topic that is announced when a key changed; its id ends
// it.
const topicPrefix = "key:"

// KeyRegistry is the administrator's side of API keys.
type KeyRegistry struct {
	Store    KeyStore
	Announce cache.Announcer
	Now      func() time.Time
}

// Create makes a key. The returned secret is shown once and cannot be had again.
func (r *KeyRegistry) Create(ctx context.Context, teamID, name string, scopes []Scope, expiresAt time.Time) (Key, redact.Secret, error) {
	var issues fault.Issues
	if len(scopes) == 0 {
		issues.Add("/scopes", fault.IssueRequired, "Give at least one scope; there are %s.", fault.Join(Scopes))
	}
	for i, s := range scopes {
		fault.CheckOneOf(&issues, fault.Pointer("/scopes", i), s, Scopes)
	}
	issues.CheckName("/name", name, 100)
	if !expiresAt.IsZero() && !expiresAt.After(r.Now()) {
		issues.Add("/expiresAt", fault.IssueValue, "The expiry lies in the past.")
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

// Revoke ends a key: committed first, announced then, so that an instance which
// hears of it and looks again cannot find the old record. When the announcement
// fails the key is revoked all the same, but instances may honour it until
// their cached copy ends; the error says so.
func (r *KeyRegistry) Revoke(ctx context.Context, id string) error {
	if err := r.Store.RevokeKey(ctx, id, r.Now()); err != nil {
		return fmt.Errorf("revoke key: %w", err)
	}
	if err := r.Announce.Announce(ctx, topicPrefix+id); err != nil {
		return fmt.Errorf("the key is revoked in the database, but running instances could not be told and may accept it for up to %s: %w", cache.TTL, err)
	}
	return nil
}
