package auth

import (
	"slices"

	"telapi/internal/fault"
)

// Principal is who a request acts for, once its credential was accepted.
type Principal struct {
	TeamID  string
	Subject string // the key's id, or the sub of a console JWT
	Scopes  []Scope
}

// Require refuses an operation whose scope the principal lacks.
func (p Principal) Require(s Scope) error {
	if slices.Contains(p.Scopes, s) {
		return nil
	}
	return fault.New(fault.Forbidden, "This operation needs the scope %s, which your credential does not have.", s).
		WithDetails(map[string]Scope{"requiredScope": s})
}

// unauthorized is the one answer to every bad credential: which part of it was
// wrong is for the log, since the difference would help whoever is guessing.
func unauthorized(cause error) error {
	return fault.New(fault.Unauthorized, "The credential is missing or not valid. Send an API key in X-API-Key, or a console JWT as a bearer token.").
		WithCause(cause)
}
