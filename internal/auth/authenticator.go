package auth

import (
	"context"
	"errors"
	"strings"
	"time"

	"telapi/internal/fault"
	"telapi/internal/fresh"
)

// CacheTTL bounds how long a key's record is used without looking again.
const CacheTTL = 30 * time.Second

const cachedKeys = 10_000

// Authenticator turns a presented credential into a Principal. A key's record
// is cached only while announcements reach this instance (see fresh.Cache), so
// that a revocation holds everywhere as soon as it is announced.
type Authenticator struct {
	keys   KeyStore
	cache  *fresh.Cache[Key]
	tokens *ConsoleTokens
	uses   *Uses
	now    func() time.Time
}

// NewAuthenticator returns an authenticator. Its cache starts suspended: it
// holds nothing until Up is called.
func NewAuthenticator(keys KeyStore, tokens *ConsoleTokens, uses *Uses, now func() time.Time) *Authenticator {
	return &Authenticator{
		keys:   keys,
		cache:  fresh.New[Key](cachedKeys, CacheTTL),
		tokens: tokens,
		uses:   uses,
		now:    now,
	}
}

// APIKey checks the value of X-API-Key.
func (a *Authenticator) APIKey(ctx context.Context, presented string) (Principal, error) {
	id, digest, ok := splitSecret(presented)
	if !ok {
		return Principal{}, unauthorized(errors.New("value has not the form of a key"))
	}
	k, err := a.cache.Get(ctx, id, func(ctx context.Context) (Key, error) { return a.keys.Key(ctx, id) })
	if fault.Is(err, fault.NotFound) {
		return Principal{}, unauthorized(errors.New("no such key"))
	}
	if err != nil {
		return Principal{}, err
	}
	now := a.now()
	switch {
	case !sameDigest(k.Digest, digest):
		err = errors.New("wrong secret for key " + id)
	case !k.RevokedAt.IsZero():
		err = errors.New("revoked key " + id)
	case !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt):
		err = errors.New("expired key " + id)
	}
	if err != nil {
		return Principal{}, unauthorized(err)
	}
	a.uses.Note(id, now)
	return Principal{TeamID: k.TeamID, Subject: k.ID, Scopes: k.Scopes}, nil
}

// Bearer checks the value of an Authorization header.
func (a *Authenticator) Bearer(header string) (Principal, error) {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Principal{}, unauthorized(errors.New("authorization is not a bearer token"))
	}
	return a.tokens.Verify(strings.TrimSpace(token))
}

// Missing is the refusal of a request that presents nothing.
func (a *Authenticator) Missing() error { return unauthorized(errors.New("no credential presented")) }

// Up, Down and Message follow the announcements of this instance.
func (a *Authenticator) Up() { a.cache.Resume() }

// Down empties the cache: a revocation might pass unheard now.
func (a *Authenticator) Down(error) { a.cache.Suspend() }

// Message drops what an announcement names.
func (a *Authenticator) Message(topic string) {
	if id, ok := strings.CutPrefix(topic, keyTopicPrefix); ok {
		a.cache.Drop(id)
	}
}
