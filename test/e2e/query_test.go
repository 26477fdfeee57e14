package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
)

// owner is a team in TestQueryParameters with one of everything that lists contain.
type owner struct {
	harness.Tenant
	session string
}

func (o owner) ids() []string { return []string{o.Team.ID, o.Endpoint.ID, o.KeyID, o.session} }

// listed returns the ID of an item in the list at a path.
func (o owner) listed(path string) string {
	switch path[strings.LastIndex(path, "/")+1:] {
	case "teams":
		return o.Team.ID
	case "keys":
		return o.KeyID
	case "endpoints":
		return o.Endpoint.ID
	case "sessions":
		return o.session
	}
	return "au_00000000-0000-0000-0000-000000000000"
}

// paramValues returns a valid value of a parameter, for which the owner has data, and a
// malformed one.
func paramValues(t *testing.T, path, name string, o owner) (valid, malformed string) {
	t.Helper()
	usage := strings.Contains(path, "/usage/")
	switch name {
	case "cursor":
		return o.listed(path), "!"
	case "limit":
		return "7", "0"
	case "teamId":
		return o.Team.ID, "a b"
	case "state":
		return "issued", "asleep"
	case "from":
		return map[bool]string{true: "2026-01-01", false: "2026-01-01T00:00:00Z"}[usage], "yesterday"
	case "to":
		return map[bool]string{true: "2026-01-02", false: "2100-01-01T00:00:00Z"}[usage], "2026-02-30"
	case "interval":
		return "day", "week"
	case "groupBy":
		return "voice", "team"
	case "sessionId":
		return o.session, "ses_x"
	case "channelId":
		return o.session, "a b"
	case "kind":
		return "bot", "mail"
	}
	t.Fatalf("%s has the new parameter %s: add values for it", path, name)
	return "", ""
}

// Every route with query parameters is called with each scope alone, by its own and by
// a foreign team, and with each parameter absent, valid, foreign, empty, repeated and
// malformed. A team never sees the data of the other.
func TestQueryParameters(t *testing.T) {
	i := harness.Start(t, playgroundEnv)
	call[object](t, i, "PUT", "limits", `{"tiers":{"api":{"max":1000000,"windowMs":60000}}}`, 200)
	newOwner := func(name string) owner {
		tenant := harness.NewTenant(t, i, name)
		return owner{tenant, issue(t, i, tenant, `"mode":"chat"`).SessionID}
	}
	own, foreign := newOwner("own"), newOwner("foreign")
	bearers := map[string]string{}
	for _, team := range []owner{own, foreign} {
		for _, scope := range auth.Scopes {
			bearers[team.Team.ID+string(scope)] = "Bearer " + consoleJWT(t, team.Team.ID, scope)
		}
	}
	for _, rt := range i.App.Routes() {
		if rt.Scope == "" { // see TestParametersOfPublicRoutes
			continue
		}
		method := rt.Method
		if strings.HasSuffix(rt.Path, "/feed") {
			method = "HEAD" // a response to GET does not end
		}
		id := own.Team.ID // of the resource in the path
		if strings.Contains(rt.Path, "sessions/{id}") {
			id = own.session
		}
		path := strings.Replace(rt.Path, "{id}", id, 1)
		if resp, body := i.Call(t, method, path+"?x=%zz", "Authorization", bearers[own.Team.ID+string(rt.Scope)]); resp.StatusCode != 400 {
			t.Errorf("%s %s with a malformed query: got %d %s, want 400", method, path, resp.StatusCode, body)
		}
		for _, name := range rt.Params {
			valid, malformed := paramValues(t, rt.Path, name, own)
			others, _ := paramValues(t, rt.Path, name, foreign)
			for variant, query := range map[string]url.Values{
				"absent": {}, "valid": {name: {valid}}, "foreign": {name: {others}},
				"empty": {name: {""}}, "repeated": {name: {valid, valid}}, "repeated with another": {name: {others, valid}}, "malformed": {name: {malformed}},
			} {
				for key, bearer := range bearers {
					caller, other := own, foreign
					if strings.HasPrefix(key, foreign.Team.ID) {
						caller, other = foreign, own
					}
					scope := auth.Scope(strings.TrimPrefix(key, caller.Team.ID))
					principal := auth.Principal{TeamID: caller.Team.ID, Scopes: []auth.Scope{scope}}
					asked := map[string]string{"valid": own.Team.ID, "foreign": foreign.Team.ID}[variant]
					want := 200
					switch {
					case principal.Require(rt.Scope) != nil:
						want = 403
					case strings.Contains(rt.Path, "admin/teams/{id}") && caller.Team.ID != own.Team.ID && !principal.ManagesPlatform():
						want = 404
					case variant == "empty" || variant == "malformed" || strings.HasPrefix(variant, "repeated"),
						variant == "absent" && (name == "kind" || strings.HasSuffix(rt.Path, "/feed")): // those are required
						want = 400
					case name == "sessionId" && asked != caller.Team.ID,
						name == "teamId" && asked != "" && asked != caller.Team.ID && !principal.ManagesPlatform(),
						name == "kind", name == "channelId": // the session has not connected
						want = 404
					}
					resp, body := i.Call(t, method, path+"?"+query.Encode(), "Authorization", bearer)
					what := fmt.Sprintf("%s %s?%s, %s as %s of team %s", method, path, query.Encode(), variant, scope, caller.Team.Name)
					if resp.StatusCode != want || want == 400 && method != "HEAD" && !(strings.Contains(body, `"VALIDATION_ERROR"`) && strings.Contains(body, `"path":"/query/`+name+`"`)) {
						t.Errorf("%s: got %d %s, want %d", what, resp.StatusCode, body, want)
					}
					for _, id := range other.ids() {
						if resp.StatusCode < 300 && strings.Contains(body, id) && !principal.ManagesPlatform() {
							t.Errorf("%s shows %s of team %s", what, id, other.Team.Name)
						}
					}
				}
			}
		}
	}
}

// Parameters of a handshake are strict too, except for the token: a bad credential is
// 401. Those of webhooks only correlate traces and never cause a callback to fail.
func TestParametersOfPublicRoutes(t *testing.T) {
	i, tenant := startTenant(t, nil)
	token := issue(t, i, tenant, `"mode":"chat"`).Token
	for _, rt := range i.App.Routes() {
		if rt.Scope != "" {
			continue
		}
		for _, name := range rt.Params {
			for variant, query := range map[string]string{"empty": name + "=", "repeated": name + "=a&" + name + "=b", "malformed": name + "=%zz"} {
				headers, want := []string{"Authorization", "Bearer " + token}, 400
				switch {
				case rt.Method == "POST":
					headers, want = []string{"Content-Type", "application/json"}, 401
				case name == "token":
					headers, want = nil, 401
				}
				path := strings.NewReplacer("{channelId}", "ch", "{workItemId}", "w").Replace(rt.Path)
				resp, body := i.Send(t, rt.Method, path+"?"+query, "", headers...)
				if resp.StatusCode != want {
					t.Errorf("%s %s with %s %s: got %d %s, want %d", rt.Method, path, variant, name, resp.StatusCode, body, want)
				}
			}
		}
	}
}
