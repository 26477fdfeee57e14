// Package auth authenticates callers of the REST API with API keys and console
// JWTs, and checks their scopes.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"telapi/internal/audit"
	"telapi/internal/background"
	"telapi/internal/cache"
	"telapi/internal/fault"
)

// Scope is a permission of an API key or console JWT.
type Scope string

// The scopes that operations require.
const (
	CreateCallToken Scope = "CREATE_CALL_TOKEN"
	ReadTeamApps    Scope = "READ_TEAM_APPS"
	ReadTeamUsage   Scope = "READ_TEAM_USAGE"
	CreateSpeech    Scope = "CREATE_SPEECH"
	RunCalls        Scope = "RUN_CALLS"       // call runtimes of the own team
	ManageTeam      Scope = "MANAGE_TEAM"     // administration of the own team
	RunAllCalls     Scope = "RUN_ALL_CALLS"   // call runtimes of all teams; includes RunCalls
	ManagePlatform  Scope = "MANAGE_PLATFORM" // administration of all teams; includes ManageTeam
)

// platformScopes concern all teams. The other scopes concern the credential's team.
var platformScopes = []Scope{RunAllCalls, ManagePlatform}

// Scopes lists all scopes.
var Scopes = append([]Scope{CreateCallToken, ReadTeamApps, ReadTeamUsage, CreateSpeech, RunCalls, ManageTeam}, platformScopes...)

// ValidTeamID reports whether a credential's teamId is well-formed. It accepts more than the
// IDs that package team generates: a JWT that manages the platform need not name a real team.
var ValidTeamID = teamPattern.MatchString

// Principal is the authenticated caller of a request.
type Principal struct {
	TeamID  string
	Subject string // the key's ID, or the sub claim of a console JWT
	Scopes  []Scope
	Type    audit.ActorType
}

// Actor returns the principal as the author of changes.
func (p Principal) Actor() audit.Actor { return audit.Actor{Type: p.Type, ID: p.Subject} }

// Require returns FORBIDDEN if the principal lacks a scope.
func (p Principal) Require(s Scope) error {
	if slices.Contains(p.Scopes, s) || s == ManageTeam && p.ManagesPlatform() || s == RunCalls && p.RunsAllCalls() {
		return nil
	}
	return forbidden(s, "This operation")
}

// ManagesPlatform reports whether the principal administers all teams.
func (p Principal) ManagesPlatform() bool { return slices.Contains(p.Scopes, ManagePlatform) }

// RunsAllCalls reports whether the principal is a call runtime of all teams.
func (p Principal) RunsAllCalls() bool { return slices.Contains(p.Scopes, RunAllCalls) }

// CheckGrant returns FORBIDDEN if the principal may not grant the scopes to keys of
// a team that it manages. Managing a team includes granting all scopes of a team.
func (p Principal) CheckGrant(scopes []Scope) error {
	for _, s := range scopes {
		if slices.Contains(platformScopes, s) && !p.ManagesPlatform() {
			return forbidden(ManagePlatform, "Granting "+string(s))
		}
	}
	return nil
}

func forbidden(s Scope, operation string) error {
	return fault.New(fault.Forbidden, "%s requires the scope %s, which your credential does not have.", operation, s).
		WithDetails(map[string]Scope{"requiredScope": s})
}

// unauthorized returns the same public error for every credential that is not proven to
// be genuine, so that an attacker learns nothing from it. The cause is only logged.
func unauthorized(cause error) error {
	return fault.New(fault.Unauthorized, "The credential is missing or invalid. Send an API key in X-API-Key, or a console JWT as a bearer token.").
		WithCause(cause)
}

// signedButInvalid returns the error for a console JWT with a valid signature. Its sender has
// the secret, so the error names the problem.
func signedButInvalid(cause error, format string, args ...any) error {
	return fault.New(fault.Unauthorized, "The signature of the console JWT is valid, but "+format, args...).WithCause(cause)
}

const (
	flushInterval = 10 * time.Second // between writes of the times of last use
	flushTimeout  = 5 * time.Second
)

// Authenticator verifies credentials. It caches keys only while this instance
// receives announcements, so that a revocation takes effect when it is announced.
type Authenticator struct {
	*cache.Cache[Key] // by ID
	keys              KeyStore
	tokens            *ConsoleTokens
	failures          *TokenFailures
	lastUsed          background.LastSeen
	log               *slog.Logger
	now               func() time.Time
}

// NewAuthenticator returns an authenticator with an empty cache. The caller must
// start Run, which writes the last use of keys.
func NewAuthenticator(keys KeyStore, tokens *ConsoleTokens, failures *TokenFailures, log *slog.Logger, now func() time.Time) *Authenticator {
	cost := func(k Key) (teamID string, size int64) { return k.TeamID, 1 }
	return &Authenticator{Cache: cache.New(topicPrefix, cache.Size, cost), keys: keys, tokens: tokens, failures: failures, log: log, now: now}
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
	if !digestsEqual(k.Digest, digest) {
		return Principal{}, unauthorized(errors.New("wrong secret for key " + id))
	}
	now := a.now()
	if state := k.state(now); state != Active {
		return Principal{}, unauthorized(fmt.Errorf("%s key %s", state, id))
	}
	a.lastUsed.Record(id, now)
	return Principal{k.TeamID, k.ID, k.Scopes, audit.APIKey}, nil
}

// Bearer verifies the value of an Authorization header.
func (a *Authenticator) Bearer(header string) (Principal, error) {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Principal{}, unauthorized(errors.New("not a bearer token"))
	}
	p, err := a.tokens.Verify(strings.TrimSpace(token))
	a.failures.Count(ConsoleToken, err)
	return p, err
}

// CheckTeam rejects a credential of a disabled team, and a console JWT whose team does not exist.
// Administrators of the platform need no team.
func (a *Authenticator) CheckTeam(p Principal, exists, disabled bool) error {
	if disabled {
		return unauthorized(errors.New("disabled team"))
	}
	if exists || p.ManagesPlatform() {
		return nil
	}
	err := signedButInvalid(errors.New("unknown team"), "its teamId %q is not a team of this service. Create the team, or use the ID of an existing one.", p.TeamID)
	a.failures.Count(ConsoleToken, err)
	return err
}

// ErrMissing returns the error for a request without a credential.
func ErrMissing() error { return unauthorized(errors.New("missing credential")) }

// Run periodically writes the times of last use until ctx ends, and a last time
// before it returns. Authentication does not wait for these writes.
func (a *Authenticator) Run(ctx context.Context) {
	for background.Sleep(ctx, flushInterval) == nil {
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
