// Package auth owns who may call the REST API: API keys, console JWTs, and the
// scopes an operation asks for.
package auth

// Scope names one permission of a key or console JWT.
type Scope string

// The scopes that operations ask for.
const (
	CreateCallToken Scope = "CREATE_CALL_TOKEN"
	ReadTeamApps    Scope = "READ_TEAM_APPS"
	ReadTeamUsage   Scope = "READ_TEAM_USAGE"
	CreateSpeech    Scope = "CREATE_SPEECH"
)

// Scopes lists them all.
var Scopes = []Scope{CreateCallToken, ReadTeamApps, ReadTeamUsage, CreateSpeech}
