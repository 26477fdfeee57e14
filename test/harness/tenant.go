package harness

import (
	"testing"

	"telapi/internal/auth"
	"telapi/internal/team"
	"telapi/test/testkit"
)

// Tenant is a team with an endpoint and an API key that has every scope.
type Tenant struct {
	Team     team.Team
	Endpoint team.Endpoint
	KeyID    string
	Key      string
}

// NewTenant creates a team called name with an endpoint and an API key.
func NewTenant(t testing.TB, i *Instance, name string) Tenant {
	t.Helper()
	created, err := i.App.Admin().Teams.Create(t.Context(), team.Team{Name: name})
	testkit.Must(t, err)
	ep := NewEndpoint(t, i, team.Endpoint{TeamID: created.ID, Name: name, Modes: team.Modes})
	id, key := NewKey(t, i, created.ID, auth.Scopes...)
	return Tenant{created, ep, id, key}
}

// NewEndpoint creates an endpoint and enables it.
func NewEndpoint(t testing.TB, i *Instance, e team.Endpoint) team.Endpoint {
	t.Helper()
	e.Enabled = true
	created, err := i.App.Admin().Endpoints.Create(t.Context(), e)
	testkit.Must(t, err)
	return created
}

// NewKey creates an API key that does not expire.
func NewKey(t testing.TB, i *Instance, teamID string, scopes ...auth.Scope) (id, key string) {
	t.Helper()
	k, secret, err := i.App.Admin().Keys.Create(t.Context(), auth.Key{TeamID: teamID, Scopes: scopes})
	testkit.Must(t, err)
	return k.ID, secret.Reveal()
}

// Session creates a session of mode chat. options are names and values of further members of
// the request.
func (tenant Tenant) Session(t testing.TB, i *Instance, options ...any) (id, token string) {
	t.Helper()
	body := map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"}
	for n := 0; n+1 < len(options); n += 2 {
		body[options[n].(string)] = options[n+1]
	}
	return Issue(t, i, tenant.Key, body)
}

// Connect creates a session, opens its first socket and reads the ready frame.
func (tenant Tenant) Connect(t testing.TB, i *Instance, options ...any) (b *Browser, token string) {
	t.Helper()
	id, token := tenant.Session(t, i, options...)
	b = Connect(t, i, id, token, "")
	b.Expect(`"event":"ready"`)
	return b, token
}
