package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/page"
	"telapi/test/harness"
	"telapi/test/testkit"
)

const adminPath = "/api/v1/admin/"

// adminRoute is one administration route with a request that it accepts.
type adminRoute struct {
	method, path string // below adminPath; TEAM, KEY, ENDPOINT and SESSION stand for IDs of the tenant
	body         string
	status       int
	action       audit.Action // recorded on success; empty: none
	versioned    bool         // answers with an ETag
	bad          string       // a body with several issues
	issues       []string     // their paths
}

var adminRoutes = []adminRoute{
	{method: "GET", path: "teams", status: 200},
	{method: "POST", path: "teams", body: `{"name":"New","dailyQuota":7}`, status: 201, action: audit.CreateTeam, versioned: true,
		bad: `{"name":" ","dailyQuota":-1,"nme":"x"}`, issues: []string{"/name", "/dailyQuota", "/nme"}},
	{method: "GET", path: "teams/TEAM", status: 200, versioned: true},
	{method: "PATCH", path: "teams/TEAM", body: `{"dailyQuota":4711}`, status: 200, action: audit.UpdateTeam, versioned: true,
		bad: `{"dailyQuota":"many","disabled":"no"}`, issues: []string{"/dailyQuota", "/disabled"}},
	{method: "GET", path: "teams/TEAM/keys", status: 200},
	{method: "POST", path: "teams/TEAM/keys", body: `{"scopes":["MANAGE_TEAM"],"name":"ci"}`, status: 201, action: audit.CreateKey,
		bad: `{"scopes":["ADMIN"],"expiresAt":"tomorrow","name":5}`, issues: []string{"/scopes/0", "/expiresAt", "/name"}},
	{method: "DELETE", path: "keys/KEY", status: 204, action: audit.RevokeKey},
	{method: "GET", path: "teams/TEAM/endpoints", status: 200},
	{method: "POST", path: "teams/TEAM/endpoints", body: `{"name":"Shop","modes":["chat"],"origins":["https://shop.example"],"gatewayProfile":{"note": {"b":1, "a":2}}}`, status: 201, action: audit.CreateEndpoint, versioned: true,
		bad: `{"modes":["fax"],"origins":["shop"],"gatewayProfile":{"commandSources":["mars"]}}`, issues: []string{"/name", "/modes/0", "/origins/0", "/gatewayProfile/commandSources/0"}},
	{method: "GET", path: "endpoints/ENDPOINT", status: 200, versioned: true},
	{method: "PUT", path: "endpoints/ENDPOINT", body: `{"name":"Renamed","modes":["chat"]}`, status: 200, action: audit.UpdateEndpoint, versioned: true,
		bad: `{"name":5,"modes":"chat","enabled":"yes"}`, issues: []string{"/name", "/modes", "/enabled"}},
	{method: "DELETE", path: "endpoints/ENDPOINT", status: 204, action: audit.DeleteEndpoint},
	{method: "GET", path: "limits", status: 200, versioned: true},
	{method: "PUT", path: "limits", body: `{"tiers":{"api":{"max":100000,"windowMs":60000}}}`, status: 200, action: audit.UpdateLimits, versioned: true,
		bad: `{"tiers":{"api":{"max":0,"windowMs":1},"mail":{"max":1}}}`, issues: []string{"/tiers/api/max", "/tiers/api/windowMs", "/tiers/mail"}},
	{method: "GET", path: "sessions", status: 200},
	{method: "DELETE", path: "sessions/SESSION", status: 204, action: audit.RevokeSession},
	{method: "GET", path: "audit", status: 200},
	{method: "POST", path: "callbacks/lint", body: `{"kind":"tool","body":{"sum":3}}`, status: 200,
		bad: `{"kind":"mail","endpoint":"x","contentType":"x"}`, issues: []string{"/kind", "/body", "/endpoint", "/contentType"}},
}

// adminFixture is an instance with a tenant and a foreign team.
type adminFixture struct {
	*harness.Instance
	tenant, foreign harness.Tenant
	session         string
}

func newAdminFixture(t *testing.T, i *harness.Instance) adminFixture {
	t.Helper()
	tenant := harness.NewTenant(t, i, "tenant")
	return adminFixture{i, tenant, harness.NewTenant(t, i, "foreign"), issue(t, i, tenant, `"mode":"chat"`).SessionID}
}

func (f adminFixture) resolve(path string) string {
	return adminPath + strings.NewReplacer("TEAM", f.tenant.Team.ID, "KEY", f.tenant.KeyID, "ENDPOINT", f.tenant.Endpoint.ID, "SESSION", f.session).Replace(path)
}

// recorded returns the number of audit entries with an action.
func recorded(t *testing.T, i *harness.Instance, action audit.Action) int {
	t.Helper()
	entries, err := i.App.Admin().Audit.AuditEntries(t.Context(), audit.Query{Teams: page.OfAllTeams(auth.Principal{Scopes: auth.Scopes}), Query: page.All})
	testkit.Must(t, err)
	return len(slices.DeleteFunc(entries, func(e audit.Entry) bool { return e.Action != action }))
}

// Each route gets a missing credential, each scope alone, a foreign team, a bad body,
// a stale version and a good request. Only the last is recorded.
func TestAdminRoutes(t *testing.T) {
	i := harness.Start(t, nil)
	var registered int
	for _, rt := range i.App.Routes() {
		if strings.HasPrefix(rt.Path, adminPath) {
			registered++
		}
	}
	testkit.Equal(t, "registered routes, all of them tested", registered, len(adminRoutes))
	for _, rt := range adminRoutes {
		t.Run(rt.method+" "+rt.path, func(t *testing.T) {
			f := newAdminFixture(t, i)
			keys := map[auth.Scope]string{}
			for _, scope := range auth.Scopes {
				_, keys[scope] = harness.NewKey(t, i, f.tenant.Team.ID, scope)
			}
			path, before := f.resolve(rt.path), recorded(t, i, rt.action)
			expect := func(caller string, status int, part, body string, headers ...string) {
				t.Helper()
				resp, got := i.Send(t, rt.method, path, body, headers...)
				if resp.StatusCode != status || !strings.Contains(got, part) {
					t.Errorf("%s: got %d %s, want %d %s", caller, resp.StatusCode, got, status, part)
				}
			}
			platformOnly := !strings.Contains(rt.path, "/") && rt.path != "sessions" || rt.method == "PATCH"
			required := map[bool]auth.Scope{true: auth.ManagePlatform, false: auth.ManageTeam}[platformOnly]
			expect("no credential", 401, code("UNAUTHORIZED"), rt.body)
			for _, scope := range auth.Scopes {
				if scope == auth.ManagePlatform || scope == required {
					continue
				}
				expect("key with "+string(scope), 403, fmt.Sprintf(`"requiredScope":%q`, required), rt.body, "X-API-Key", keys[scope])
			}
			if strings.ContainsAny(rt.path, "TKES") && !platformOnly { // has an ID
				manager := "Bearer " + consoleJWT(t, f.foreign.Team.ID, auth.ManageTeam)
				expect("foreign team", 404, code("NOT_FOUND"), rt.body, "Authorization", manager)
			}
			platform := "Bearer " + consoleJWT(t, f.foreign.Team.ID, auth.ManagePlatform, auth.ManageTeam)
			if rt.bad != "" {
				expect("no JSON", 400, code("MALFORMED_JSON"), `{"a":`, "Authorization", platform)
				expect("no JSON type", 415, code("UNSUPPORTED_MEDIA_TYPE"), rt.body, "Authorization", platform, "Content-Type", "text/plain")
				for _, issue := range rt.issues {
					expect("bad body", 400, fmt.Sprintf(`"path":%q`, issue), rt.bad, "Authorization", platform)
				}
			}
			changesVersion := rt.versioned && rt.action != "" && rt.status == 200 || rt.action == audit.DeleteEndpoint
			if changesVersion {
				expect("stale version", 412, code("PRECONDITION_FAILED"), rt.body, "Authorization", platform, "If-Match", `"stale", W/"weak"`)
			}
			if n := recorded(t, i, rt.action); n != before {
				t.Errorf("rejected requests recorded %d changes, want none", n-before)
			}

			headers := []string{"Authorization", platform}
			if changesVersion {
				current, _ := i.Call(t, "GET", path, headers...)
				headers = append(headers, "If-Match", current.Header.Get("ETag"))
			}
			resp, body := i.Send(t, rt.method, path, rt.body, headers...)
			wantStatus(t, resp, body, rt.status, "")
			if (resp.Header.Get("ETag") != "") != rt.versioned {
				t.Errorf("ETag %q, want one: %v", resp.Header.Get("ETag"), rt.versioned)
			}
			if rt.versioned { // reading it again returns the same version
				if rt.status == 201 {
					path = adminPath + path[strings.LastIndex(path, "/")+1:] + "/" + idOf(t, body)
				}
				if again, _ := i.Call(t, "GET", path, "Authorization", platform); again.Header.Get("ETag") != resp.Header.Get("ETag") {
					t.Errorf("ETag %s of %s, want %s as in the response", again.Header.Get("ETag"), path, resp.Header.Get("ETag"))
				}
			}
			if n := recorded(t, i, rt.action); rt.action != "" && n != before+1 {
				t.Errorf("recorded %d changes, want one %s", n-before, rt.action)
			}
		})
	}
}

// idOf returns the ID in a response.
func idOf(t *testing.T, body string) string {
	t.Helper()
	var created struct{ ID string }
	testkit.Must(t, json.Unmarshal([]byte(body), &created))
	return created.ID
}

const lintedBody = `{"conversation":{"identifier":{"id":"call-1"}},"mesages":{},
	"messages":{"message":[{"content":{"textMessage":{"textPlain":"Goodbye."}}}]},
	"actions":[{"type":"hangup","commandId":"c1","resaon":"done"},{"type":"transfer","commandId":"c2","target":"tel:+49301"}]}`

func TestLintReportsEntriesDecisionsAndWarnings(t *testing.T) {
	i := harness.Start(t, nil)
	tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
	profile := `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true,"waitForSilense":true}]}`
	call[object](t, i, "PUT", "endpoints/"+tenant.Endpoint.ID, fmt.Sprintf(`{"name":"Shop","modes":["chat"],"gatewayProfile":%s}`, profile), 200)
	manager := []string{"Authorization", "Bearer " + consoleJWT(t, tenant.Team.ID, auth.ManageTeam)}
	lint := func(members string) (int, string) {
		resp, body := i.Post(t, adminPath+"callbacks/lint", `{"kind":"bot",`+members+`}`, manager...)
		return resp.StatusCode, body
	}
	allowed := []string{`"decision":"allowed"`, `"ignored":["resaon"]`, `"kind":"bot_message"`, `"kind":"command"`, `"kind":"command_denied"`, `"path":"/body/mesages"`, `"path":"/body/actions/0/resaon"`}
	for _, c := range []struct {
		name, members string
		status        int
		want          []string
	}{
		{"endpoint", fmt.Sprintf(`"body":%s,"endpointId":%q`, lintedBody, tenant.Endpoint.ID), 200, allowed},
		{"profile", fmt.Sprintf(`"body":%s,"profile":%s`, lintedBody, profile), 200, append(allowed, `"path":"/profile/commandPolicies/0/waitForSilense"`)},
		{"no profile", `"body":` + lintedBody, 200, []string{`"decision":"denied"`, `"type":"hangup"`}},
		{"invalid body", `"body":{"messages":{"message":[{"content":{}}]}}`, 400, []string{code("VALIDATION_ERROR"), `"path":"/conversation/identifier/id"`}},
		{"invalid profile", `"body":{},"profile":{"commandSources":["mars"]}`, 400, []string{`"path":"/profile/commandSources/0"`}},
		{"both", fmt.Sprintf(`"body":{},"endpointId":%q,"profile":{}`, tenant.Endpoint.ID), 400, []string{`"path":"/profile"`}},
		{"foreign endpoint", fmt.Sprintf(`"body":%s,"endpointId":%q`, lintedBody, foreign.Endpoint.ID), 404, []string{code("NOT_FOUND")}},
		{"large body", `"body":{"conversation":{"identifier":{"id":"call-1"}},"metadata":{"x":"` + strings.Repeat("x", 900<<10) + `"}}`, 200, []string{`"kind":"metadata"`}},
		{"stream", fmt.Sprintf(`"contentType":"application/x-ndjson","body":%q,"profile":%s`, delta("Bye. Now")+`{"done":true,"actions":{"type":"hangup"},"acton":1}`, profile), 200,
			[]string{`"part":1`, `"text":"Bye."`, `"parts":2`, `"decision":"allowed"`, `"path":"/body/acton"`}},
		{"deltas", fmt.Sprintf(`"contentType":"application/x-ndjson","split":"none","body":%q`, delta("Bye. Now")+doneLine), 200, []string{`"text":"Bye. Now"`}},
		{"incomplete stream", fmt.Sprintf(`"contentType":"text/event-stream","body":%q`, "data: {}\n\n"), 400, []string{code("MALFORMED_JSON")}},
		{"stream that is no string", `"contentType":"text/event-stream","body":{}`, 400, []string{`"path":"/body"`}},
		{"too large", `"body":"` + strings.Repeat("x", 1200<<10) + `"`, 413, []string{code("PAYLOAD_TOO_LARGE")}},
	} {
		if status, body := lint(c.members); status != c.status || !containsAll(body, c.want...) {
			t.Errorf("%s: got %d %.2000s, want %d %q", c.name, status, body, c.status, c.want)
		}
	}
}
