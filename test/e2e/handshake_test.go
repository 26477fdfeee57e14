package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"

	"telapi/internal/auth"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// A call token is accepted as subprotocol, header and query parameter. Other
// credentials are rejected.
func TestHandshakeToken(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	_, token := svc.session(t)
	socket := "ws" + strings.TrimPrefix(svc.URL, "http") + "/ws/session"
	open := func(name, query string, header http.Header, protocols ...string) {
		t.Helper()
		d := websocket.Dialer{Subprotocols: protocols}
		conn, resp, err := d.DialContext(t.Context(), socket+query, header)
		if err != nil {
			t.Errorf("%s: %v %s", name, err, harness.Body(resp))
			return
		}
		defer func() { _ = conn.Close() }()
		if len(protocols) > 0 && conn.Subprotocol() != "telapi.v1" {
			t.Errorf("%s: subprotocol %q, want telapi.v1", name, conn.Subprotocol())
		}
	}
	open("subprotocol", "", nil, "telapi.v1", "telapi.bearer."+token)
	open("header", "", http.Header{"Authorization": {"Bearer " + token}})
	open("header in lower case", "", http.Header{"Authorization": {"bearer " + token}})
	open("query", "?token="+token, nil)

	// See TestInvalidTokensAreRejected for forged tokens.
	for name, bad := range map[string]string{"no token": "", "console JWT": consoleJWT(t, svc.Team.ID, auth.Scopes...), "API key": svc.Key, "truncated token": token[:len(token)/2]} {
		wantRejected(t, svc.Instance, bad, "", http.StatusUnauthorized, "UNAUTHORIZED")
		if resp, body := svc.Call(t, http.MethodGet, "/ws/session", "Authorization", "Bearer "+bad); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("plain GET with %s: %d %s, want 401", name, resp.StatusCode, body)
		}
	}
	if resp, body := svc.Call(t, http.MethodGet, "/api/v1/endpoints", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("call token on a REST route: %d %s, want 401", resp.StatusCode, body)
	}
}

// A plain GET reports why a handshake is rejected, to allowed origins only. It
// does not redeem the token.
func TestPlainGetReportsReason(t *testing.T) {
	t.Parallel()
	svc := startService(t, nil)
	ep, err := svc.App.Admin().Endpoints.Create(t.Context(), team.Endpoint{TeamID: svc.Team.ID, Name: "shop", Enabled: true, Modes: team.Modes, Origins: []string{"https://shop.example"}})
	testkit.Must(t, err)
	id, token := svc.session(t, "endpointId", ep.ID)
	get := func(origin, token string, status int, code string, readable bool) {
		t.Helper()
		resp, body := svc.Call(t, http.MethodGet, "/ws/session", "Origin", origin, "Authorization", "Bearer "+token)
		if resp.StatusCode != status || !strings.Contains(body, `"code":"`+code) || (resp.Header.Get("Access-Control-Allow-Origin") == origin) != readable {
			t.Errorf("from %s: %d %v %s, want %d %s, readable: %v", origin, resp.StatusCode, resp.Header, body, status, code, readable)
		}
	}
	get("https://shop.example", token, http.StatusUpgradeRequired, "UPGRADE_REQUIRED", true)
	get("https://evil.example", token, http.StatusForbidden, "ORIGIN_NOT_ALLOWED", false)
	get("https://shop.example", "x", http.StatusUnauthorized, "UNAUTHORIZED", true)
	if _, body := svc.Call(t, http.MethodGet, "/api/v1/sessions/"+id, "X-API-Key", svc.Key); !strings.Contains(body, `"state":"issued"`) {
		t.Errorf("session after plain GETs is %s, want issued", body)
	}
	resp, _ := svc.Call(t, http.MethodOptions, "/ws/session", "Origin", "https://shop.example",
		"Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
	if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Origin") != "https://shop.example" ||
		!strings.EqualFold(resp.Header.Get("Access-Control-Allow-Headers"), "authorization") {
		t.Errorf("OPTIONS: %d %v, want 204 and the origin and header allowed", resp.StatusCode, resp.Header)
	}
	dial := func(origin string) int {
		d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}}
		conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(svc.URL, "http")+"/ws/session", http.Header{"Origin": {origin}})
		if err == nil {
			_ = conn.Close()
		}
		return resp.StatusCode
	}
	for origin, want := range map[string]int{"https://shop.example": 101, "https://SHOP.example": 101, "http://shop.example": 403, "https://shop.example.evil": 403, "null": 403} {
		testkit.Equal(t, fmt.Sprintf("handshake from %s", origin), dial(origin), want)
	}
	if _, err := svc.App.Admin().Endpoints.Update(t.Context(), ep.ID, func(e *team.Endpoint) error { e.Origins = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	for origin, want := range map[string]int{svc.URL: 101, "https://shop.example": 403} { // without a list only the service's own host is allowed
		testkit.Until(t, fmt.Sprintf("a handshake from %s gets %d", origin, want), func() bool { return dial(origin) == want })
	}
}

// After SIGTERM /health returns 503 while the instance still serves. A plain GET reports the
// drain, not that the token is valid. A second signal ends the wait.
func TestPlainGetReportsDrain(t *testing.T) {
	t.Parallel()
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	env["DRAIN_DELAY"], env["SHUTDOWN_TIMEOUT"] = "5m", "10m"
	leaving, proc := serve(t, env)
	_, token := svc.session(t)
	testkit.Must(t, proc.Cmd.Process.Signal(syscall.SIGTERM))
	testkit.Until(t, "/health returns 503", func() bool { return leaving.HealthStatus() == http.StatusServiceUnavailable })
	testkit.Until(t, "the drain is reported", func() bool {
		resp, body := leaving.Call(t, http.MethodGet, "/ws/session", "Origin", leaving.URL, "Authorization", "Bearer "+token)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, "shutting down") &&
			resp.Header.Get("Retry-After") != "" && resp.Header.Get("Access-Control-Allow-Origin") == leaving.URL
	})
	wantRejected(t, leaving, token, "", http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	testkit.Must(t, proc.Cmd.Process.Signal(syscall.SIGTERM))
	proc.WaitExit(t)
}
