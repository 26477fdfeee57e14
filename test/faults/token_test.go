package faults

import (
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/gorilla/websocket"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// updateSession changes a session in the database, for example to make it expire.
func updateSession(t *testing.T, svc *service, session, set string) {
	t.Helper()
	db, err := sql.Open("pgx", svc.env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE sessions SET "+set+" WHERE id = $1", session); err != nil {
		t.Fatal(err)
	}
}

// A call token is accepted as subprotocol, header and query parameter. Other
// credentials are rejected.
func TestHandshakeToken(t *testing.T) {
	onEmbedded(t, nil, func(t *testing.T, svc *service) {
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

		console := sign(t, jwt.MapClaims{"sub": "user-1", "teamId": svc.teamID, "scopes": auth.Scopes, "exp": time.Now().Add(time.Hour).Unix()}, harness.Secret)
		forged := sign(t, jwt.MapClaims{"iss": "telapi", "aud": "telapi:session", "sub": "x", "exp": time.Now().Add(time.Hour).Unix()}, strings.Repeat("wrong", 10))
		unknown := sign(t, jwt.MapClaims{
			"iss": "telapi", "aud": "telapi:session", "sub": "ses_unknown", "teamId": svc.teamID, "endpointId": "e", "mode": "chat", "jti": "j",
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(), "rdm": time.Now().Add(time.Hour).Unix(),
		}, auth.Secrets{Current: harness.Secret}.ForCallTokens().Current.Reveal())
		for name, bad := range map[string]string{
			"no token": "", "console JWT": console, "API key": svc.apiKey, "forged token": forged, "token of an unknown session": unknown, "garbage": "x.y.z",
			"truncated token": token[:len(token)/2], "missing signature": token[:strings.LastIndex(token, ".")+1],
		} {
			wantRejected(t, svc.Instance, bad, "", http.StatusUnauthorized, "UNAUTHORIZED")
			if resp, body := svc.Call(t, http.MethodGet, "/ws/session", "Authorization", "Bearer "+bad); resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("plain GET with %s: %d %s, want 401", name, resp.StatusCode, body)
			}
		}
		if resp, body := svc.Call(t, http.MethodGet, "/api/v1/endpoints", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("call token on a REST route: %d %s, want 401", resp.StatusCode, body)
		}
	})
}

func sign(t *testing.T, claims jwt.MapClaims, secret string) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A plain GET reports why a handshake is rejected, to allowed origins only. It
// does not redeem the token.
func TestPlainGetReportsReason(t *testing.T) {
	onEmbedded(t, nil, func(t *testing.T, svc *service) {
		ep, err := svc.App.Admin().Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: svc.teamID, Name: "shop", Enabled: true, Modes: endpoint.Modes, Origins: []string{"https://shop.example"}})
		if err != nil {
			t.Fatal(err)
		}
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
		if _, body := svc.Call(t, http.MethodGet, "/api/v1/sessions/"+id, "X-API-Key", svc.apiKey); !strings.Contains(body, `"state":"issued"`) {
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
			if got := dial(origin); got != want {
				t.Errorf("handshake from %s: %d, want %d", origin, got, want)
			}
		}
		if _, err := svc.App.Admin().Endpoints.Update(t.Context(), ep.ID, func(e *endpoint.Endpoint) error { e.Origins = nil; return nil }); err != nil {
			t.Fatal(err)
		}
		for origin, want := range map[string]int{svc.URL: 101, "https://shop.example": 403} { // without a list only the service's own host is allowed
			testkit.Until(t, fmt.Sprintf("a handshake from %s gets %d", origin, want), func() bool { return dial(origin) == want })
		}
	})
}

func TestWebRTCTokenIsRejectedWhenDisabled(t *testing.T) {
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	_, token := svc.session(t, "mode", "webrtc")
	svc.env["FEATURE_WEBRTC"] = "false"
	disabled := svc.startPeer(t)
	wantRejected(t, disabled, token, "", http.StatusServiceUnavailable, "WEBRTC_DISABLED")
	if resp, body := disabled.Call(t, http.MethodGet, "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("plain GET: %d %s, want 503", resp.StatusCode, body)
	}
	id, chat := svc.session(t)
	harness.Connect(t, disabled, id, chat, "").Expect(`"event":"ready"`)
}

func TestSessionLifetime(t *testing.T) {
	t.Parallel()
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	other := svc.startPeer(t)

	t.Run("redeemed too late", func(t *testing.T) {
		id, token := svc.session(t)
		updateSession(t, svc, id, "redeem_by = 1, due_at = 1")
		wantRejected(t, svc.Instance, token, "", http.StatusGone, "SESSION_ENDED")
		if resp, body := svc.Call(t, http.MethodGet, "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusGone {
			t.Errorf("plain GET: %d %s, want 410", resp.StatusCode, body)
		}
	})
	t.Run("reconnect after redeemBy", func(t *testing.T) {
		b, token, ch := svc.conversation(t)
		updateSession(t, svc, b.Session, "redeem_by = 1")
		b.Cut()
		b = harness.Connect(t, other, b.Session, token, "")
		b.Expect(`"event":"ready"`)
		checkConversation(t, b, ch)
	})
	t.Run("deleted while connected to another instance", func(t *testing.T) {
		id, token := svc.session(t)
		b := harness.Connect(t, other, id, token, "")
		b.Expect(`"event":"ready"`)
		if resp, body := svc.Call(t, http.MethodDelete, "/api/v1/sessions/"+id, "X-API-Key", svc.apiKey); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("DELETE: %d %s, want 204", resp.StatusCode, body)
		}
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("close code %d, want 4503", code)
		}
		wantRejected(t, other, token, "", http.StatusGone, "SESSION_ENDED")
	})
}

// On SIGTERM every socket is closed with 1012. The browsers resume on another
// instance without losing a message.
func TestDrainedSocketsResumeOnOtherInstance(t *testing.T) {
	t.Parallel()
	const sockets = 20
	env, _ := harness.RealStores(t)
	env["SESSION_RECONNECT_JITTER"] = "1s"
	svc := startService(t, env)
	leaving, proc := serve(t, env)
	rt := harness.StartRuntime(t, svc.env)
	type connection struct {
		b             *harness.Browser
		token, cursor string
	}
	var connections []connection
	for range sockets {
		id, token := svc.session(t)
		b := harness.Connect(t, leaving, id, token, "")
		connections = append(connections, connection{b, token, b.Expect(`"event":"ready"`, `"reconnectJitterMs":1000`).ReadyStreamID()})
	}
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, c := range connections {
		if code := c.b.CloseCode(); code != 1012 {
			t.Errorf("close code %d, want 1012", code)
		}
	}
	for range sockets {
		harness.SendChat(t, harness.Accept(t, rt), `{"text":"while you were away"}`)
	}
	for _, c := range connections {
		b := harness.Connect(t, svc.Instance, c.b.Session, c.token, "?streamId="+c.cursor)
		b.Expect(`"event":"ready"`, `"resumed":true`)
		b.Expect("while you were away")
		b.Expect(`{"recovered":true,"count":1}`)
	}
	proc.WaitExit(t)
}

// A plain GET to a draining instance reports the drain, not that the token is
// valid.
func TestPlainGetReportsDrain(t *testing.T) {
	t.Parallel()
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	env["DRAIN_DELAY"], env["SHUTDOWN_TIMEOUT"] = "5m", "10m"
	leaving, proc := serve(t, env)
	_, token := svc.session(t)
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the drain is reported", func() bool {
		resp, body := leaving.Call(t, http.MethodGet, "/ws/session", "Origin", leaving.URL, "Authorization", "Bearer "+token)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, "shutting down") &&
			resp.Header.Get("Retry-After") != "" && resp.Header.Get("Access-Control-Allow-Origin") == leaving.URL
	})
	wantRejected(t, leaving, token, "", http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil { // skips the drain delay
		t.Fatal(err)
	}
	proc.WaitExit(t)
}

// A handshake that is in progress when an instance drains gets 503 and does not
// delay the shutdown.
func TestHandshakeDuringDrainIsRejected(t *testing.T) {
	t.Parallel()
	env, _ := harness.RealStores(t)
	svc := startService(t, env)
	leaving := svc.startPeer(t)
	id, token := svc.session(t)
	db, err := sql.Open("pgx", env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", id); err != nil { // blocks the redemption
		t.Fatal(err)
	}
	statuses, stopped := make(chan int), make(chan error)
	go func() {
		_, resp, err := harness.Dial(t, leaving, token, "")
		if resp == nil {
			t.Errorf("handshake got no response: %v", err)
			resp = &http.Response{}
		}
		statuses <- resp.StatusCode
	}()
	testkit.Until(t, "the handshake waits for the database", func() bool {
		var waiting int
		err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&waiting)
		return err == nil && waiting > 0
	})
	go func() { stopped <- leaving.Stop() }()
	testkit.Until(t, "the instance drains", func() bool { return leaving.Log.Has("draining") })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if status := <-statuses; status != http.StatusServiceUnavailable {
		t.Errorf("handshake status %d, want 503", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	harness.Connect(t, svc.Instance, id, token, "").Expect(`"event":"ready"`)
}
