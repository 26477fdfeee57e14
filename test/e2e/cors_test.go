package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
)

const consoleOrigin = "https://console.example"

// Pages of CONSOLE_ORIGINS may call every route of the API, and those of other origins
// none. Webhooks and pages have no CORS headers.
func TestConsoleOnAnotherOrigin(t *testing.T) {
	i := harness.Start(t, harness.Env{"CONSOLE_ORIGINS": "https://Console.example:443/, http://localhost:8080", "PLAYGROUND_ENABLED": "true"})
	i.Client = &http.Client{} // preflight requests are not in api/openapi.yaml
	tenant := harness.NewTenant(t, i, "tenant")
	bearer := "Bearer " + consoleJWT(t, tenant.Team.ID, auth.Scopes...)
	corsOf := func(resp harness.Response) (origin string, credentials bool) {
		return resp.Header.Get("Access-Control-Allow-Origin"), resp.Header["Access-Control-Allow-Credentials"] != nil
	}
	for _, rt := range i.App.Routes() {
		if strings.HasPrefix(rt.Path, "/ws/") { // decides by the origins of the endpoint
			continue
		}
		api := strings.HasPrefix(rt.Path, "/api/v1/") && !strings.HasPrefix(rt.Path, "/api/v1/webhooks/")
		path := strings.NewReplacer("{id}", "x", "{name}", "x.alaw", "{channelId}", "ch", "{workItemId}", "w", "{$}", "", "{file}", "x", "{number}", "1").Replace(rt.Path)
		for _, origin := range []string{consoleOrigin, "http://localhost:8080", "https://console.example.evil.example", "http://console.example", "null"} {
			listed := api && (origin == consoleOrigin || origin == "http://localhost:8080")
			wantOrigin, wantStatus := "", 405
			if listed {
				wantOrigin, wantStatus = origin, 204
			}
			resp, _ := i.Call(t, "OPTIONS", path, "Origin", origin, "Access-Control-Request-Method", rt.Method, "Access-Control-Request-Headers", "authorization,content-type")
			got, credentials := corsOf(resp)
			methods := strings.Split(resp.Header.Get("Access-Control-Allow-Methods"), ", ")
			allowed := slices.Contains(methods, rt.Method) && strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "Authorization")
			if resp.StatusCode != wantStatus || got != wantOrigin || credentials || allowed != listed {
				t.Errorf("preflight of %s %s from %s: %d %v, want %d for the origin %q", rt.Method, path, origin, resp.StatusCode, resp.Header, wantStatus, wantOrigin)
			}
			if rt.Scope == "" {
				continue
			}
			for _, headers := range [][]string{{"Origin", origin}, {"Origin", origin, "Authorization", bearer}} { // rejected and accepted
				if strings.HasSuffix(rt.Path, "/feed") {
					break
				}
				resp, _ := i.Call(t, rt.Method, path, headers...)
				got, credentials := corsOf(resp)
				exposed := resp.Header.Get("Access-Control-Expose-Headers")
				if got != wantOrigin || credentials || strings.Contains(exposed, "Content-Range, ETag") != listed || api != slices.Contains(resp.Header["Vary"], "Origin") {
					t.Errorf("%s %s from %s: %d %v, want the origin %q", rt.Method, path, origin, resp.StatusCode, resp.Header, wantOrigin)
				}
			}
		}
	}
	for path, want := range map[string]string{"/api/v1/nothing": consoleOrigin, "/health": "", "/openapi.yaml": ""} {
		if resp, _ := i.Call(t, "GET", path, "Origin", consoleOrigin); resp.Header.Get("Access-Control-Allow-Origin") != want {
			t.Errorf("%s: %d %v, want the origin %q", path, resp.StatusCode, resp.Header, want)
		}
	}
	if resp, _ := i.Call(t, "OPTIONS", "/api/v1/endpoints", "Origin", consoleOrigin); resp.StatusCode != 405 {
		t.Errorf("OPTIONS that is not a preflight request: %d, want 405", resp.StatusCode)
	}
}
