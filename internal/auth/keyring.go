package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"telapi/internal/fault"
	"telapi/internal/redact"
)

// Announcer tells every running instance that something changed.
type Announcer interface {
	Announce(ctx context.Context, topic string) error
}

// KeyTopic is what is announced when a key changed.
func KeyTopic(id string) string { return keyTopicPrefix + id }

const keyTopicPrefix = "key:"

// Keyring is the administrator's side of API keys.
type Keyring struct {
	keys     KeyStore
	announce Announcer
	now      func() time.Time
}

// NewKeyring returns a keyring on the given store.
func NewKeyring(keys KeyStore, announce Announcer, now func() time.Time) *Keyring {
	return &Keyring{keys: keys, announce: announce, now: now}
}

// Create makes a key. The returned secret is shown once and cannot be had again.
func (r *Keyring) Create(ctx context.Context, teamID, name string, scopes []Scope, expiresAt time.Time) (Key, redact.Secret, error) {
	var issues fault.Issues
	if len(scopes) == 0 {
		issues.Add("/scopes", fault.IssueRequired, "Give at least one scope; there are %s.", scopeList())
	}
	for i, s := range scopes {
		if !slices.Contains(Scopes, s) {
			issues.Add(fault.Pointer("/scopes", i), fault.IssueValue, "%q is no scope; there are %s.", s, scopeList())
		}
	}
	issues.CheckName("/name", name, 100)
	if !expiresAt.IsZero() && !expiresAt.After(r.now()) {
		issues.Add("/expiresAt", fault.IssueValue, "The expiry lies in the past.")
	}
	if err := issues.Err(); err != nil {
		return Key{}, "", err
	}
	id, full, digest := newSecret()
	scopes = slices.Compact(slices.Sorted(slices.Values(scopes)))
	k := Key{ID: id, TeamID: teamID, Name: name, Digest: digest, Scopes: scopes, CreatedAt: r.now(), ExpiresAt: expiresAt}
	if err := r.keys.CreateKey(ctx, k); err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return k, full, nil
}

// List returns a team's keys, or everybody's when teamID is empty.
func (r *Keyring) List(ctx context.Context, teamID string) ([]Key, error) {
	return r.keys.Keys(ctx, teamID)
}

// Show returns one key's record.
func (r *Keyring) Show(ctx context.Context, id string) (Key, error) { return r.keys.Key(ctx, id) }

// Revoke ends a key: committed first, announced then, so that an instance which
// hears of it and looks again cannot find the old record. When the announcement
// fails the key is revoked all the same, but instances may honour it until
// their cached copy ends; the error says so.
func (r *Keyring) Revoke(ctx context.Context, id string) error {
	if err := r.keys.RevokeKey(ctx, id, r.now()); err != nil {
		return fmt.Errorf("revoke key: %w", err)
	}
	if err := r.announce.Announce(ctx, KeyTopic(id)); err != nil {
		return fmt.Errorf("the key is revoked in the database, but running instances could not be told and may accept it for up to %s: %w", CacheTTL, err)
	}
	return nil
}

func scopeList() string {
	names := make([]string, len(Scopes))
	for i, s := range Scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}
