package auth

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/sleep"
	"telapi/internal/writebehind"
)

const (
	flushInterval = 10 * time.Second
	flushTimeout  = 5 * time.Second
)

// Authenticator verifies credentials. It caches keys only while this instance
// receives announcements, so that a revocation takes effect when it is announced.
type Authenticator struct {
	*cache.Cache[Key]
	keys   KeyStore
	tokens *ConsoleTokens
	uses   writebehind.LastSeen
	log    *slog.Logger
	now    func() time.Time
}

// NewAuthenticator returns an authenticator with an empty cache. Run must run too.
func NewAuthenticator(keys KeyStore, tokens *ConsoleTokens, log *slog.Logger, now func() time.Time) *Authenticator {
	return &Authenticator{Cache: cache.New[Key](topicPrefix, cache.Size, cache.TTL), keys: keys, tokens: tokens, log: log, now: now}
}

// APIKey verifies the value of X-API-Key.
func (a *Authenticator) APIKey(ctx context.Context, presented string) (Principal, error) {
	id, digest, ok := splitSecret(presented)
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

// Run periodically writes the times of last use until ctx ends, and once more
// then. Authentication does not wait for these writes.
func (a *Authenticator) Run(ctx context.Context) {
	for sleep.For(ctx, flushInterval) == nil {
		a.flush(ctx)
	}
	a.flush(context.WithoutCancel(ctx))
}

func (a *Authenticator) flush(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := a.uses.Flush(bounded, a.keys.TouchKeys); err != nil && ctx.Err() == nil {
		a.log.WarnContext(ctx, "writing the last use of API keys failed; retrying", "error", err)
	}
}
