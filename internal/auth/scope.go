// Package auth authenticates callers of the REST API with API keys and console
// JWTs, and checks their scopes.
package auth

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
