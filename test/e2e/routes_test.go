package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/contract"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// The table of the interface document: which routes exist under which flags.
func TestRoutesByFeatureFlag(t *testing.T) {
	routes := []struct {
		method, path string
		always       bool // exists without FEATURE_API_ACCESS
		status       int  // without a credential, if the route exists
	}{
		{"GET", "/health", true, 200},
		{"GET", "/metrics", true, 200},
		{"POST", "/api/v1/sessions/token", false, 401},
		{"GET", "/api/v1/sessions/ses_x", false, 401},
		{"DELETE", "/api/v1/sessions/ses_x", false, 401},
		{"GET", "/api/v1/endpoints", false, 401},
		{"GET", "/api/v1/runtime/capabilities", false, 401},
		{"GET", "/api/v1/runtime/endpoints/ep_x", false, 401},
		{"GET", "/api/v1/runtime/voices", false, 401},
		{"POST", "/api/v1/runtime/speech", false, 401},
		{"GET", "/api/v1/runtime/speech/x.alaw", false, 401},
		{"GET", "/api/v1/usage/tts-characters", false, 401},
		{"GET", "/api/v1/admin/teams", false, 401},
		{"POST", "/api/v1/admin/teams", false, 401},
		{"GET", "/api/v1/admin/teams/tm_x", false, 401},
		{"PATCH", "/api/v1/admin/teams/tm_x", false, 401},
		{"GET", "/api/v1/admin/teams/tm_x/keys", false, 401},
		{"POST", "/api/v1/admin/teams/tm_x/keys", false, 401},
		{"DELETE", "/api/v1/admin/keys/x", false, 401},
		{"GET", "/api/v1/admin/teams/tm_x/endpoints", false, 401},
		{"POST", "/api/v1/admin/teams/tm_x/endpoints", false, 401},
		{"GET", "/api/v1/admin/endpoints/ep_x", false, 401},
		{"PUT", "/api/v1/admin/endpoints/ep_x", false, 401},
		{"DELETE", "/api/v1/admin/endpoints/ep_x", false, 401},
		{"GET", "/api/v1/admin/limits", false, 401},
		{"PUT", "/api/v1/admin/limits", false, 401},
		{"GET", "/api/v1/admin/sessions", false, 401},
		{"DELETE", "/api/v1/admin/sessions/ses_x", false, 401},
		{"GET", "/api/v1/admin/audit", false, 401},
		{"POST", "/api/v1/admin/callbacks/lint", false, 401},
		{"GET", "/ws/session", false, 401},
		{"OPTIONS", "/ws/session", false, 204},
		{"GET", "/ws/runtime", false, 426},
		{"GET", "/openapi.yaml", false, 200},
		{"GET", "/asyncapi.yaml", false, 200},
		{"POST", "/api/v1/webhooks/bot/ch", true, 415},
		{"POST", "/api/v1/webhooks/llm/ch/w", true, 415},
		{"POST", "/api/v1/webhooks/tool/ch/w", true, 415},
	}
	for _, apiAccess := range []bool{true, false} {
		for _, webRTC := range []bool{true, false} {
			t.Run(fmt.Sprintf("FEATURE_API_ACCESS=%v FEATURE_WEBRTC=%v", apiAccess, webRTC), func(t *testing.T) {
				i := harness.Start(t, harness.Env{"FEATURE_API_ACCESS": fmt.Sprint(apiAccess), "FEATURE_WEBRTC": fmt.Sprint(webRTC)})
				for _, row := range routes {
					want := row.status
					if !row.always && !apiAccess {
						want = 404
					}
					if resp, body := i.Call(t, row.method, row.path); resp.StatusCode != want {
						t.Errorf("%s %s: got %d %s, want %d", row.method, row.path, resp.StatusCode, body, want)
					}
				}
				if _, body := i.Call(t, "POST", "/api/v1/webhooks/mail/ch"); strings.Contains(body, "/openapi.yaml") != apiAccess {
					t.Errorf("hint at /openapi.yaml in %s, want it: %v", body, apiAccess)
				}
				if want := map[bool]int{true: len(routes), false: 5}[apiAccess]; len(i.App.Routes()) != want {
					t.Errorf("%d routes are registered, want %d", len(i.App.Routes()), want)
				}
			})
		}
	}
}

func TestRoutesMatchOpenAPI(t *testing.T) {
	i := harness.Start(t, nil) // without the playground, which is not part of the API
	var routes []contract.Route
	for _, rt := range i.App.Routes() {
		routes = append(routes, contract.Route{Method: rt.Method, Path: rt.Path, Scope: string(rt.Scope), Tier: string(rt.Tier),
			Params: strings.Join(slices.Sorted(slices.Values(rt.Params)), " ")})
	}
	contract.CompareRoutes(t, routes)
}

// Every route is called without a credential and with each scope alone, as API
// key and as JWT, of the own and of another team.
func TestRouteScopeTeamMatrix(t *testing.T) {
	i := harness.Start(t, nil)
	tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
	for _, rt := range i.App.Routes() {
		if rt.Scope == "" || strings.HasPrefix(rt.Path, adminPath) { // see TestAdminRoutes
			continue
		}
		id, granted := tenant.Endpoint.ID, 200
		switch {
		case rt.Method == "POST":
			granted = 415 // the request has no body
		case rt.Method == "DELETE":
			granted = 204
		case strings.HasSuffix(rt.Path, "/{name}"):
			granted = 404 // there is no audio
		}
		if strings.HasPrefix(rt.Path, "/api/v1/sessions/") {
			id = issue(t, i, tenant, `"mode":"chat"`).SessionID
		}
		path := strings.Replace(rt.Path, "{id}", id, 1)
		expect := func(caller string, status int, errorCode string, headers ...string) {
			t.Helper()
			resp, body := i.Call(t, rt.Method, path, headers...)
			if resp.StatusCode != status || !strings.Contains(body, errorCode) {
				t.Errorf("%s %s as %s: got %d %s, want %d %s", rt.Method, path, caller, resp.StatusCode, body, status, errorCode)
			}
		}
		expect("no credential", 401, code("UNAUTHORIZED"))
		for _, scope := range auth.Scopes {
			_, key := harness.NewKey(t, i, tenant.Team.ID, scope)
			bearer := "Bearer " + consoleJWT(t, tenant.Team.ID, scope)
			if scope == rt.Scope {
				expect("key with the scope", granted, "", "X-API-Key", key)
				expect("JWT with the scope", granted, "", "Authorization", bearer)
				continue
			}
			required := fmt.Sprintf(`"requiredScope":%q`, rt.Scope)
			expect("key with "+string(scope), 403, required, "X-API-Key", key)
			expect("JWT with "+string(scope), 403, required, "Authorization", bearer)
		}
		expect("JWT without scopes", 403, code("FORBIDDEN"), "Authorization", "Bearer "+consoleJWT(t, tenant.Team.ID, []auth.Scope{}...))

		// A key takes precedence over a JWT. Several keys are rejected.
		good := "Bearer " + consoleJWT(t, tenant.Team.ID, auth.Scopes...)
		expect("invalid key and valid JWT", 401, code("UNAUTHORIZED"), "X-API-Key", "tk_guess_"+strings.Repeat("A", 43), "Authorization", good)
		expect("empty key and valid JWT", 401, code("UNAUTHORIZED"), "X-API-Key", "", "Authorization", good)
		expect("valid key twice", 401, code("UNAUTHORIZED"), "X-API-Key", tenant.Key, "X-API-Key", tenant.Key)
		expect("valid JWT twice", 401, code("UNAUTHORIZED"), "Authorization", good, "Authorization", good)

		// Another team sees its own data only.
		if strings.Contains(rt.Path, "{id}") {
			expect("key of another team", 404, code("NOT_FOUND"), "X-API-Key", foreign.Key)
			expect("JWT of another team", 404, code("NOT_FOUND"), "Authorization", "Bearer "+consoleJWT(t, foreign.Team.ID, auth.Scopes...))
		} else if _, body := i.Call(t, rt.Method, path, "X-API-Key", foreign.Key); strings.Contains(body, tenant.Endpoint.ID) || strings.Contains(body, tenant.Team.ID) {
			t.Errorf("%s %s shows data of another team: %s", rt.Method, path, body)
		}
	}
}

func TestErrorsUseEnvelope(t *testing.T) {
	i := harness.Start(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/", 404, "NOT_FOUND"},
		{"GET", "/nothing", 404, "NOT_FOUND"},
		{"GET", "/api/v1/endpoints/", 404, "NOT_FOUND"},
		{"GET", "//api/v1/endpoints", 404, "NOT_FOUND"},
		{"GET", "/api/v1/../v1/endpoints", 404, "NOT_FOUND"},
		{"GET", "/api/v1/runtime/endpoints/%00", 401, "UNAUTHORIZED"},
		{"POST", "/api/v1/endpoints", 405, "METHOD_NOT_ALLOWED"},
		{"DELETE", "/health", 405, "METHOD_NOT_ALLOWED"},
		{"OPTIONS", "/api/v1/endpoints", 405, "METHOD_NOT_ALLOWED"},
		{"BREW", "/api/v1/endpoints", 405, "METHOD_NOT_ALLOWED"},
	} {
		resp, body := i.Call(t, c.method, c.path, "X-Request-Id", "abc-123_4.5")
		wantStatus(t, resp, body, c.status, code(c.code))
		testkit.Equal(t, fmt.Sprintf("%s %s: X-Request-Id", c.method, c.path), resp.Header.Get("X-Request-Id"), "abc-123_4.5")
		if c.status == 405 && resp.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q, want GET, HEAD", c.method, c.path, resp.Header.Get("Allow"))
		}
	}
}

func TestETagReturnsNotModified(t *testing.T) {
	i, tenant := startTenant(t, nil)
	for _, path := range []string{"/api/v1/runtime/capabilities", "/api/v1/runtime/endpoints/" + tenant.Endpoint.ID, "/openapi.yaml"} {
		first, _ := i.Call(t, "GET", path, "X-API-Key", tenant.Key)
		again, body := i.Call(t, "GET", path, "X-API-Key", tenant.Key, "If-None-Match", first.Header.Get("ETag"))
		if again.StatusCode != 304 || body != "" {
			t.Errorf("%s with its ETag %q: %d %q, want 304 without a body", path, first.Header.Get("ETag"), again.StatusCode, body)
		}
	}
}
