package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// platformJWT returns the header of an administrator with every scope.
func platformJWT(t *testing.T) []string {
	t.Helper()
	return []string{"Authorization", "Bearer " + consoleJWT(t, "console", auth.Scopes...)}
}

// call sends a request as the platform's administrator and decodes the response.
func call[T any](t *testing.T, i *harness.Instance, method, path, body string, status int) (got T) {
	t.Helper()
	resp, text := i.Send(t, method, adminPath+path, body, platformJWT(t)...)
	if resp.StatusCode != status {
		t.Fatalf("%s %s: %d %s, want %d", method, path, resp.StatusCode, text, status)
	}
	if text != "" {
		testkit.Must(t, json.Unmarshal([]byte(text), &got))
	}
	return got
}

type object = map[string]any

func TestDisabledTeamStopsOnEveryInstance(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		i := harness.Start(t, env)
		other := i
		if env["DATABASE_URL"] != "" {
			other = harness.Start(t, env)
		}
		tenant := harness.NewTenant(t, i, "tenant")
		jwt := "Bearer " + consoleJWT(t, tenant.Team.ID, auth.ReadTeamApps)
		session, token := tenant.Session(t, i)
		_, unused := tenant.Session(t, i)
		browser := harness.Connect(t, other, session, token, "")
		waitForStatus(t, other, 200, "/api/v1/endpoints", "X-API-Key", tenant.Key)

		call[object](t, i, "PATCH", "teams/"+tenant.Team.ID, `{"disabled":true}`, 200)
		waitForStatus(t, other, 401, "/api/v1/endpoints", "X-API-Key", tenant.Key)
		waitForStatus(t, other, 401, "/api/v1/endpoints", "Authorization", jwt)
		if got := browser.CloseCode(); got != int(channel.CloseEnded) {
			t.Errorf("the socket was closed with %d, want %d", got, channel.CloseEnded)
		}
		for _, token := range []string{token, unused} {
			if _, resp, err := harness.Dial(t, i, token, ""); err == nil || resp.StatusCode != 410 {
				t.Errorf("handshake with a token of the team: %v, want 410", err)
			}
		}

		call[object](t, i, "PATCH", "teams/"+tenant.Team.ID, `{"disabled":false}`, 200)
		waitForStatus(t, other, 200, "/api/v1/endpoints", "X-API-Key", tenant.Key)
		waitForStatus(t, other, 200, "/api/v1/endpoints", "Authorization", jwt)
		if state := sessionState(t, i, tenant, session); state != "revoked" {
			t.Errorf("the session is %s after the team was enabled again, want revoked", state)
		}
	})
}

func TestDeletedEndpointEndsItsSessions(t *testing.T) {
	i, tenant := startTenant(t, nil)
	session, token := tenant.Session(t, i)
	browser := harness.Connect(t, i, session, token, "")
	call[object](t, i, "DELETE", "endpoints/"+tenant.Endpoint.ID, "", 204)
	if got := browser.CloseCode(); got != int(channel.CloseEnded) {
		t.Errorf("the socket was closed with %d, want %d", got, channel.CloseEnded)
	}
	if _, resp, err := harness.Dial(t, i, token, ""); err == nil || resp.StatusCode != 410 {
		t.Errorf("handshake: %v, want 410", err)
	}
	call[object](t, i, "DELETE", "endpoints/"+tenant.Endpoint.ID, "", 404)
	expectStatus(t, 404, code("NOT_FOUND"))(i.Post(t, "/api/v1/sessions/token", fmt.Sprintf(`{"endpointId":%q}`, tenant.Endpoint.ID), "X-API-Key", tenant.Key))
}

func TestOnlyThePlatformGrantsPlatformScopes(t *testing.T) {
	i, tenant := startTenant(t, nil)
	path := adminPath + "teams/" + tenant.Team.ID + "/keys"
	for _, has := range []auth.Scope{auth.ManageTeam, auth.ManagePlatform} {
		bearer := "Bearer " + consoleJWT(t, tenant.Team.ID, has)
		for _, granted := range auth.Scopes {
			status, part := 201, string(granted)
			if has == auth.ManageTeam && (granted == auth.ManagePlatform || granted == auth.RunAllCalls) {
				status, part = 403, `"requiredScope":"MANAGE_PLATFORM"`
			}
			expectStatus(t, status, part)(i.Send(t, "POST", path, fmt.Sprintf(`{"scopes":["READ_TEAM_APPS",%q]}`, granted), "Authorization", bearer))
		}
	}
	keys := call[struct{ Data []object }](t, i, "GET", "teams/"+tenant.Team.ID+"/keys", "", 200).Data
	if want := 1 + 2*len(auth.Scopes) - 2; len(keys) != want || strings.Contains(fmt.Sprint(keys), "tk_") {
		t.Errorf("keys are %v, want %d without secrets", keys, want)
	}
}

func TestTeamShowsRequestsOfToday(t *testing.T) {
	i, tenant := startTenant(t, nil)
	if used := call[object](t, i, "GET", "teams/"+tenant.Team.ID, "", 200)["usedToday"]; used != 0.0 {
		t.Errorf("%v requests of a new team, want 0", used)
	}
	for range 3 {
		i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", tenant.Key)
	}
	if used := call[object](t, i, "GET", "teams/"+tenant.Team.ID, "", 200)["usedToday"].(float64); used < 3 || used > 6 {
		t.Errorf("%v requests, want 3 and what is leased", used)
	}
}

func TestAuditLogListsChangesWithTheirActors(t *testing.T) {
	t.Parallel()
	env, _ := harness.ServeEnv(t, harness.Env{})
	i, _ := harness.Serve(t, env)
	teamID := harness.RunJSON(t, env, "team", "create", "Acme")["id"].(string)
	call[object](t, i, "PATCH", "teams/"+teamID, `{"name":"Acme Ltd"}`, 200)
	call[object](t, i, "PUT", "limits", `{"tiers":{"api":{"max":100000,"windowMs":60000}}}`, 200)

	type entries struct {
		Data []struct {
			Action, Target, TeamID string
			At                     string
			Actor                  struct{ Type, ID string }
			Details                object
		}
		NextCursor *string
	}
	list := func(query string) (actions []string) {
		for _, e := range call[entries](t, i, "GET", "audit"+query, "", 200).Data {
			actions = append(actions, e.Actor.Type+" "+e.Action)
		}
		return actions
	}
	inTeam := "?teamId=" + teamID
	first := call[entries](t, i, "GET", "audit"+inTeam+"&limit=1", "", 200)
	updated := url.QueryEscape(first.Data[0].At)
	for query, want := range map[string][]string{
		inTeam:                      {"console team.update", "cli team.create"},
		inTeam + "&from=" + updated: {"console team.update"},
		inTeam + "&to=" + updated:   {"cli team.create"},
		"?teamId=tm_other":          nil,
		"?limit=1":                  {"console limits.update"},
	} {
		if got := list(query); !slices.Equal(got, want) {
			t.Errorf("audit%s lists %q, want %q", query, got, want)
		}
	}
	if got := list(inTeam + "&limit=1&cursor=" + *first.NextCursor); !slices.Equal(got, []string{"cli team.create"}) {
		t.Errorf("the second page lists %q, want the older entry", got)
	}
	if e := first.Data[0]; e.Actor.ID != "user-1" || e.Target != "team:"+teamID || e.TeamID != teamID ||
		fmt.Sprint(e.Details) != "map[changes:[map[from:Acme path:/name to:Acme Ltd]]]" {
		t.Errorf("entry is %+v, want the console user, the team and both names", e)
	}

	if r := telapi(t, env, "audit", "--team", teamID, "--json"); r.exit != 0 || strings.Count(r.stdout, "\n") != 2 || !strings.Contains(r.stdout, `"action":"team.update"`) {
		t.Errorf("telapi audit: exit %d\n%s%s, want both entries", r.exit, r.stdout, r.stderr)
	}
}

// Requests that an administrator may not make are recorded, at the latest when the
// server stops. Those of the platform's administrator for what does not exist are not.
func TestRejectedAdministrationIsRecorded(t *testing.T) {
	env, _ := harness.ServeEnv(t, harness.Env{"DATA_DIR": t.TempDir()})
	i := harness.Start(t, env)
	tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
	keyID, key := harness.NewKey(t, i, tenant.Team.ID, auth.ManageTeam)
	for path, status := range map[string]int{
		"endpoints/" + foreign.Endpoint.ID: 404, "sessions?teamId=" + foreign.Team.ID: 404, "limits": 403, "sessions": 200, "sessions?teamId=": 400,
	} {
		expectStatus(t, status, "")(i.Call(t, "GET", adminPath+path, "X-API-Key", key))
	}
	i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", key) // 403, but not administration
	call[object](t, i, "GET", "endpoints/ep_unknown", "", 404)
	testkit.Must(t, i.Stop())
	var rejected []string
	for line := range strings.Lines(telapi(t, env, "audit", "--json").stdout) {
		var e struct {
			Action, TeamID string
			Actor          struct{ Type, ID string }
			Details        struct {
				Requests int
				Attempts []struct{ Request, Code string }
			}
		}
		testkit.Must(t, json.Unmarshal([]byte(line), &e))
		if e.Action == "request.reject" {
			rejected = append(rejected, e.Actor.Type+" "+e.Actor.ID+" "+e.TeamID)
			if e.Details.Requests != 3 || len(e.Details.Attempts) != 3 || !strings.Contains(line, `"request":"GET /api/v1/admin/endpoints/`+foreign.Endpoint.ID+`","code":"NOT_FOUND"`) {
				t.Errorf("entry %s, want three requests", line)
			}
		}
	}
	if !slices.Equal(rejected, []string{"api_key " + keyID + " " + tenant.Team.ID}) {
		t.Errorf("rejected %q, want one entry of the key", rejected)
	}
}

func TestCommandsDeleteEndpointsAndDisableTeams(t *testing.T) {
	env, _ := harness.ServeEnv(t, harness.Env{})
	i, _ := harness.Serve(t, env)
	teamID := harness.RunJSON(t, env, "team", "create", "Acme")["id"].(string)
	ep := harness.RunJSON(t, env, "endpoint", "create", "--team", teamID, "--name", "Shop", "--mode", "chat")["id"].(string)
	key := harness.RunJSON(t, env, "key", "create", "--team", teamID, "--scope", "READ_TEAM_APPS")["key"].(string)
	harness.RunJSON(t, env, "endpoint", "delete", ep)
	telapi(t, env, "endpoint", "delete", ep).expect(t, 1, "not found")
	waitForStatus(t, i, 200, "/api/v1/endpoints", "X-API-Key", key)
	if team := harness.RunJSON(t, env, "team", "update", teamID, "--disabled"); team["disabled"] != true || team["name"] != "Acme" {
		t.Errorf("team is %v, want it disabled with its name", team)
	}
	waitForStatus(t, i, 401, "/api/v1/endpoints", "X-API-Key", key)
	harness.RunJSON(t, env, "team", "update", teamID, "--disabled=false")
	waitForStatus(t, i, 200, "/api/v1/endpoints", "X-API-Key", key)
	if got := recordedCommands(t, env, teamID); !slices.Equal(got, []string{"team.update", "team.update", "endpoint.delete", "key.create", "endpoint.create", "team.create"}) {
		t.Errorf("recorded %q", got)
	}
}

// recordedCommands returns the actions of a team that the command line recorded,
// newest first.
func recordedCommands(t *testing.T, env harness.Env, teamID string) (actions []string) {
	t.Helper()
	for line := range strings.Lines(telapi(t, env, "audit", "--team", teamID, "--json").stdout) {
		var e struct {
			Action string
			Actor  struct{ Type string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Actor.Type != "cli" {
			t.Errorf("line %q, want an entry of the command line", line)
		}
		actions = append(actions, e.Action)
	}
	return actions
}
