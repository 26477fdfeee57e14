package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"time"

	"telapi/internal/audit"
	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/redact"
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

// KeyState is the state of an API key.
type KeyState string

// States of a key.
const (
	Active  KeyState = "active"
	Expired KeyState = "expired"
	Revoked KeyState = "revoked"
)

// KeyStates lists all states.
var KeyStates = []KeyState{Active, Expired, Revoked}

// KeyView is an API key for administrators.
type KeyView struct {
	Key
	State   KeyState `json:"state"`
	FullKey string   `json:"key,omitempty"` // with its secret, when it was just created
}

// View returns the key for administrators, without its secret.
func (k Key) View(now time.Time) KeyView { return KeyView{Key: k, State: k.state(now)} }

func (k Key) state(now time.Time) KeyState {
	switch {
	case !k.RevokedAt.IsZero():
		return Revoked
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		return Expired
	}
	return Active
}

// Check sorts the scopes of a new key, drops duplicates, and records every issue.
func (k *Key) Check(now time.Time, issues *fault.Issues) {
	if len(k.Scopes) == 0 {
		issues.Missing("/scopes", "Give at least one scope of %s.", fault.Join(Scopes))
	}
	for i, s := range k.Scopes {
		fault.CheckOneOf(issues, fault.Pointer("/scopes", i), s, Scopes)
	}
	k.Scopes = slices.Compact(slices.Sorted(slices.Values(k.Scopes)))
	issues.CheckName("/name", k.Name, maxNameLength)
	if !k.ExpiresAt.IsZero() && !issues.Has("/expiresAt") {
		issues.Check(k.ExpiresAt.After(now), "/expiresAt", fault.IssueValue, "The expiry is in the past.")
	}
}

// KeyStore stores API keys. It returns fault.NotFound for an unknown ID. It writes
// audit entries in the transaction of the change.
type KeyStore interface {
	// CreateKey adds a key. It returns fault.Validation if the team has MaxKeys keys
	// already, even if others are created at the same time. It deletes the oldest
	// revoked keys if there are more than MaxKeys of them.
	CreateKey(ctx context.Context, k Key, entries ...audit.Entry) error
	Key(ctx context.Context, id string) (Key, error)
	// Keys returns a page of the teams' keys, oldest first.
	Keys(ctx context.Context, teams page.Teams, q page.Query) ([]Key, error)
	// RevokeKey is idempotent: it keeps the time of the first revocation.
	RevokeKey(ctx context.Context, id string, at time.Time, entries ...audit.Entry) error
	// TouchKeys stores times of last use. An older time never replaces a newer one.
	TouchKeys(ctx context.Context, used map[string]time.Time) error
}

// topicPrefix, followed by a key's ID, is announced when the key changes. It is also the
// target of audit entries.
const topicPrefix = "key:"

const maxNameLength = 100

// MaxKeys is the maximum number of keys of a team that are not revoked. As many
// revoked ones are kept.
const MaxKeys = 1000

// KeyRegistry creates and revokes API keys.
type KeyRegistry struct {
	Store     KeyStore
	Announcer cache.Announcer
	Now       func() time.Time
}

// Create creates a key with the team, name, scopes and expiry of k. The returned full key, with
// its secret, cannot be read again later. The key's times have the precision of the store.
func (r *KeyRegistry) Create(ctx context.Context, k Key) (Key, redact.Secret, error) {
	k.CreatedAt, k.ExpiresAt = r.Now().UTC().Truncate(time.Millisecond), k.ExpiresAt.UTC().Truncate(time.Millisecond)
	var issues fault.Issues
	k.Check(k.CreatedAt, &issues)
	if err := issues.Err(); err != nil {
		return Key{}, "", err
	}
	var full redact.Secret
	k.ID, full, k.Digest = generateKey()
	entry := audit.New(ctx, r.Now(), audit.CreateKey, topicPrefix+k.ID, k.TeamID, nil, struct {
		Name      string    `json:"name,omitempty"`
		Scopes    []Scope   `json:"scopes"`
		ExpiresAt time.Time `json:"expiresAt,omitzero"`
	}{k.Name, k.Scopes, k.ExpiresAt})
	if err := r.Store.CreateKey(ctx, k, entry); err != nil {
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return k, full, nil // not announced: no instance has cached it
}

// Revoke revokes a key. It announces the change after the commit, so that an
// instance that reads the key again does not find the old version. If the
// announcement fails, instances may accept the key until their caches expire; another
// Revoke announces it again.
func (r *KeyRegistry) Revoke(ctx context.Context, id string) error {
	k, err := r.Store.Key(ctx, id)
	if err == nil && k.RevokedAt.IsZero() {
		err = r.Store.RevokeKey(ctx, id, r.Now(), audit.New(ctx, r.Now(), audit.RevokeKey, topicPrefix+id, k.TeamID, nil, nil))
	}
	if err != nil {
		return fmt.Errorf("revoke key: %w", err)
	}
	if err := r.Announcer.Announce(ctx, topicPrefix+id); err != nil {
		return fmt.Errorf("the key is revoked, but announcing it failed: running instances may accept the key for up to %s: %w", cache.TTL, err)
	}
	return nil
}

// keyPattern matches tk_<id>_<secret>. The secret is 256 random bits in base64url.
var keyPattern = regexp.MustCompile(`^tk_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})$`)

// ValidKeyID reports whether the ID of a key has the right form.
var ValidKeyID = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`).MatchString

// generateKey returns a new key's ID, the full key for its owner, and the digest of
// its secret, which is stored.
func generateKey() (id string, full redact.Secret, digest [32]byte) {
	id = rand.Text()[:20]
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // cannot fail
	secret := base64.RawURLEncoding.EncodeToString(raw[:])
	return id, redact.Secret("tk_" + id + "_" + secret), sha256.Sum256([]byte(secret))
}

// parseKey returns the ID and the digest of the secret of a key that a client sent.
func parseKey(presented string) (id string, digest [32]byte, ok bool) {
	m := keyPattern.FindStringSubmatch(presented)
	if m == nil {
		return "", digest, false
	}
	return m[1], sha256.Sum256([]byte(m[2])), true
}

// KeyID returns the ID of a key, which can be given by its ID or as a whole. It does
// not check the secret.
func KeyID(idOrKey string) string {
	if id, _, ok := parseKey(idOrKey); ok {
		return id
	}
	return idOrKey
}

// ValidKey reports whether a key has the right form.
func ValidKey(presented string) bool { return keyPattern.MatchString(presented) }

func digestsEqual(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }
