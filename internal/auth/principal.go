// Package auth authenticates callers of the REST API with API keys and console
// JWTs, and checks their scopes.
package auth

import (
	"slices"

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
