// Package auth authenticates callers of the REST API with API keys and console
// JWTs, and checks their scopes.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/sleep"
	"telapi/internal/writebehind"
)

// Scope is a permission of an API key or console JWT.
type Scope string

// The scopes that operations require.
const (
	CreateCallToken Scope = "CREATE_CALL_TOKEN"
	ReadTeamApps    Scope = "READ_TEAM_APPS"
	ReadTeamUsage   Scope = "READ_TEAM_USAGE"
	CreateSpeech    Scope = "CREATE_SPEECH"
)

// Scopes lists all scopes.
var Scopes = []Scope{CreateCallToken, ReadTeamApps, ReadTeamUsage, CreateSpeech}

// Principal is the authenticated caller of a request.
type Principal struct {
	TeamID  string
	Subject string // the key's ID, or the sub claim of a console JWT
	Scopes  []Scope
}

// Require returns FORBIDDEN if the principal lacks a scope.
func (p Principal) Require(s Scope) error {
	if slices.Contains(p.Scopes, s) {
		return nil
	}
	return fault.New(fault.Forbidden, "This operation requires the scope %s, which your credential does not have.", s).
		WithDetails(map[string]Scope{"requiredScope": s})
}

// unauthorized returns the same public error for every bad credential, so that
// an attacker learns nothing from it. The cause is only logged.
func unauthorized(cause error) error {
	return fault.New(fault.Unauthorized, "The credential is missing or invalid. Send an API key in X-API-Key, or a console JWT as a bearer token.").
		WithCause(cause)
}

const (
	flushInterval = 10 * time.Second // between writes of the times of last use
	flushTimeout  = 5 * time.Second
)

// Authenticator verifies credentials. It caches keys only while this instance
// receives announcements, so that a revocation takes effect when it is announced.
type Authenticator struct {
	*cache.Cache[Key]
	keys     KeyStore
	tokens   *ConsoleTokens
	lastUsed writebehind.LastSeen
	log      *slog.Logger
	now      func() time.Time
}

// NewAuthenticator returns an authenticator with an empty cache. The caller must
// start Run, which writes the last use of keys.
func NewAuthenticator(keys KeyStore, tokens *ConsoleTokens, log *slog.Logger, now func() time.Time) *Authenticator {
	return &Authenticator{Cache: cache.New[Key](topicPrefix, cache.Size, cache.TTL), keys: keys, tokens: tokens, log: log, now: now}
}

// APIKey verifies the value of X-API-Key.
func (a *Authenticator) APIKey(ctx context.Context, presented string) (Principal, error) {
	id, digest, ok := parseKey(presented)
	if !ok {
		return Principal{}, unauthorized(errors.New("malformed key"))
	}
	k, err := a.Get(ctx, id, func(ctx context.Context) (Key, error) { return a.keys.Key(ctx, id) })
	if fault.Is(err, fault.NotFound) {
		return Principal{}, unauthorized(errors.New("unknown key"))
	}
	if err != nil {
		return Principal{}, err
	}
	now := a.now()
	switch {
	case !digestsEqual(k.Digest, digest):
		err = errors.New("wrong secret for key " + id)
	case !k.RevokedAt.IsZero():
		err = errors.New("revoked key " + id)
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		err = errors.New("expired key " + id)
	}
	if err != nil {
		return Principal{}, unauthorized(err)
	}
	a.lastUsed.Record(id, now)
	return Principal{TeamID: k.TeamID, Subject: k.ID, Scopes: k.Scopes}, nil
}

// Bearer verifies the value of an Authorization header.
func (a *Authenticator) Bearer(header string) (Principal, error) {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Principal{}, unauthorized(errors.New("not a bearer token"))
	}
	return a.tokens.Verify(strings.TrimSpace(token))
}

// Missing returns the error for a request without a credential.
func (a *Authenticator) Missing() error { return unauthorized(errors.New("missing credential")) }

// Run periodically writes the times of last use until ctx ends, and a last time
// before it returns. Authentication does not wait for these writes.
func (a *Authenticator) Run(ctx context.Context) {
	for sleep.For(ctx, flushInterval) == nil {
		a.flush(ctx)
	}
	a.flush(context.WithoutCancel(ctx))
}

func (a *Authenticator) flush(ctx context.Context) {
	flushCtx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := a.lastUsed.Flush(flushCtx, a.keys.TouchKeys); err != nil && ctx.Err() == nil {
		a.log.WarnContext(ctx, "writing the last use of API keys failed; retrying", "error", err)
	}
}

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

// topicPrefix, followed by a key's ID, is announced when the key changes.
const topicPrefix = "key:"

const maxNameLength = 100

// KeyRegistry creates and revokes API keys.
type KeyRegistry struct {
	Store    KeyStore
	Announce cache.Announcer
	Now      func() time.Time
}

// Create creates a key. The returned secret cannot be read again later.
func (r *KeyRegistry) Create(ctx context.Context, teamID, name string, scopes []Scope, expiresAt time.Time) (Key, redact.Secret, error) {
	var issues fault.Issues
	issues.Check(len(scopes) > 0, "/scopes", fault.IssueRequired, "Give at least one scope of %s.", fault.Join(Scopes))
	for i, s := range scopes {
		fault.CheckOneOf(&issues, fault.Pointer("/scopes", i), s, Scopes)
	}
	issues.CheckName("/name", name, maxNameLength)
	issues.Check(expiresAt.IsZero() || expiresAt.After(r.Now()), "/expiresAt", fault.IssueValue, "The expiry is in the past.")
	if err := issues.Err(); err != nil {
		return Key{}, "", err
	}
	id, full, digest := generateKey()
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

// keyPattern matches tk_<id>_<secret>. The secret is 256 random bits in base64url.
var keyPattern = regexp.MustCompile(`^tk_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})$`)

// generateKey returns a new key's ID, the full key for its owner, and the digest of
// its secret, which is stored.
func generateKey() (id string, full redact.Secret, digest [32]byte) {
	id = rand.Text()[:20]
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
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

func digestsEqual(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }
