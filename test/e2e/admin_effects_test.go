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
		testkit.Equal(t, "state of the session", sessionState(t, i, tenant, session), "revoked")
	})
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
	testkit.Equal(t, "requests of a new team", call[object](t, i, "GET", "teams/"+tenant.Team.ID, "", 200)["usedToday"], 0.0)
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
		Data       []auditEntry
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

	if log := auditLog(t, env, "--team", teamID); len(log) != 2 || log[0].Action != "team.update" {
		t.Errorf("telapi audit prints %+v, want both entries", log)
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
	for _, e := range auditLog(t, env) {
		if e.Action == "request.reject" {
			rejected = append(rejected, e.Actor.Type+" "+e.Actor.ID+" "+e.TeamID)
			attempts, _ := e.Details["attempts"].([]any)
			if e.Details["requests"] != 3.0 || len(attempts) != 3 || !strings.Contains(fmt.Sprint(attempts), "map[code:NOT_FOUND request:GET /api/v1/admin/endpoints/"+foreign.Endpoint.ID+"]") {
				t.Errorf("entry %+v, want three requests", e)
			}
		}
	}
	if !slices.Equal(rejected, []string{"api_key " + keyID + " " + tenant.Team.ID}) {
		t.Errorf("rejected %q, want one entry of the key", rejected)
	}
}

// auditEntry is an entry of the audit log.
type auditEntry struct {
	Action, Target, TeamID, At string
	Actor                      struct{ Type, ID string }
	Details                    object
}

// auditLog returns what telapi audit prints, newest first.
func auditLog(t *testing.T, env harness.Env, args ...string) (entries []auditEntry) {
	t.Helper()
	for line := range strings.Lines(telapi(t, env, append([]string{"audit", "--json"}, args...)...).stdout) {
		var e auditEntry
		testkit.Must(t, json.Unmarshal([]byte(line), &e))
		entries = append(entries, e)
	}
	return entries
}
