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
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// change alters a session's record, as time would.
func change(t *testing.T, p *place, session, set string) {
	t.Helper()
	db, err := sql.Open("pgx", p.env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE sessions SET "+set+" WHERE id = $1", session); err != nil {
		t.Fatal(err)
	}
}

// The three ways to show a token, and everything that is none.
func TestHandshakeToken(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		_, token := p.session(t)
		socket := "ws" + strings.TrimPrefix(p.URL, "http") + "/ws/session"
		open := func(name, query string, header http.Header, protocols ...string) {
			t.Helper()
			d := websocket.Dialer{Subprotocols: protocols}
			conn, resp, err := d.DialContext(t.Context(), socket+query, header)
			if err != nil {
				t.Errorf("%s: %v %s", name, err, talk.Body(resp))
				return
			}
			defer func() { _ = conn.Close() }()
			if len(protocols) > 0 && conn.Subprotocol() != "telapi.v1" {
				t.Errorf("%s: answered with subprotocol %q", name, conn.Subprotocol())
			}
		}
		open("subprotocol", "", nil, "telapi.v1", "telapi.bearer."+token)
		open("header", "", http.Header{"Authorization": {"Bearer " + token}})
		open("header, in lower case", "", http.Header{"Authorization": {"bearer " + token}})
		open("query", "?token="+token, nil)

		console := sign(t, jwt.MapClaims{"sub": "user-1", "teamId": p.team, "scopes": auth.Scopes, "exp": time.Now().Add(time.Hour).Unix()}, boot.Secret)
		forged := sign(t, jwt.MapClaims{"iss": "telapi", "aud": "telapi:session", "sub": "x", "exp": time.Now().Add(time.Hour).Unix()}, strings.Repeat("wrong", 10))
		for name, bad := range map[string]string{
			"none": "", "the console's": console, "an API key": p.apiKey, "a forged one": forged, "garbage": "x.y.z",
			"half of one": token[:len(token)/2], "without its signature": token[:strings.LastIndex(token, ".")+1],
		} {
			refused(t, p.Instance, bad, "", http.StatusUnauthorized, "UNAUTHORIZED")
			if status, _, body := ask(t, p.Instance, http.MethodGet, "/ws/session", "Authorization", "Bearer "+bad); status != http.StatusUnauthorized {
				t.Errorf("plain GET with %s: %d %s", name, status, body)
			}
		}
		if status, _, body := ask(t, p.Instance, http.MethodGet, "/api/v1/endpoints", "Authorization", "Bearer "+token); status != http.StatusUnauthorized {
			t.Errorf("a call token as bearer of the API: %d %s", status, body)
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

// A plain GET tells a page why its socket is refused, if its origin may know,
// and redeems nothing.
func TestPlainGetReportsReason(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		ep, err := p.App.Admin().Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: p.team, Name: "shop", Modes: endpoint.Modes, Origins: []string{"https://shop.example"}})
		if err != nil {
			t.Fatal(err)
		}
		id, token := p.session(t, "endpointId", ep.ID)
		get := func(origin, token string, status int, code string, readable bool) {
			t.Helper()
			got, header, body := ask(t, p.Instance, http.MethodGet, "/ws/session", "Origin", origin, "Authorization", "Bearer "+token)
			if got != status || !strings.Contains(body, `"code":"`+code) || (header.Get("Access-Control-Allow-Origin") == origin) != readable {
				t.Errorf("from %s: %d %v %s", origin, got, header, body)
			}
		}
		get("https://shop.example", token, http.StatusUpgradeRequired, "UPGRADE_REQUIRED", true)
		get("https://evil.example", token, http.StatusForbidden, "ORIGIN_NOT_ALLOWED", false)
		get("https://shop.example", "x", http.StatusUnauthorized, "UNAUTHORIZED", true)
		if _, _, body := ask(t, p.Instance, http.MethodGet, "/api/v1/sessions/"+id, "X-API-Key", p.apiKey); !strings.Contains(body, `"state":"issued"`) {
			t.Errorf("after plain GETs the session is %s", body)
		}
		status, header, _ := ask(t, p.Instance, http.MethodOptions, "/ws/session", "Origin", "https://shop.example",
			"Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
		if status != http.StatusNoContent || header.Get("Access-Control-Allow-Origin") != "https://shop.example" ||
			!strings.EqualFold(header.Get("Access-Control-Allow-Headers"), "authorization") {
			t.Errorf("OPTIONS: %d %v", status, header)
		}
		dial := func(origin string) int {
			d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + token}}
			conn, resp, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(p.URL, "http")+"/ws/session", http.Header{"Origin": {origin}})
			if err == nil {
				_ = conn.Close()
			}
			return resp.StatusCode
		}
		for origin, want := range map[string]int{"https://shop.example": 101, "https://SHOP.example": 101, "http://shop.example": 403, "https://shop.example.evil": 403, "null": 403} {
			if got := dial(origin); got != want {
				t.Errorf("a socket from %s: %d", origin, got)
			}
		}
		if _, err := p.App.Admin().Endpoints.Update(t.Context(), ep.ID, func(e *endpoint.Endpoint) { e.Origins = nil }); err != nil {
			t.Fatal(err)
		}
		for origin, want := range map[string]int{p.URL: 101, "https://shop.example": 403} { // no list: the service's own host
			poll.Until(t, fmt.Sprintf("%s gets %d", origin, want), func() bool { return dial(origin) == want })
		}
	})
}

func TestWebRTCTokenIsRejectedWhenDisabled(t *testing.T) {
	env, _ := realStores(t)
	p := newPlace(t, env)
	_, token := p.session(t, "mode", "webrtc")
	p.env["FEATURE_WEBRTC"] = "false"
	off := p.twin(t)
	refused(t, off, token, "", http.StatusServiceUnavailable, "WEBRTC_DISABLED")
	if status, _, body := ask(t, off, http.MethodGet, "/ws/session", "Authorization", "Bearer "+token); status != http.StatusServiceUnavailable {
		t.Errorf("plain GET: %d %s", status, body)
	}
	id, chat := p.session(t)
	talk.Connect(t, off, id, chat, "").Expect(`"event":"ready"`)
}

func TestSessionLifetime(t *testing.T) {
	t.Parallel()
	env, _ := realStores(t)
	p := newPlace(t, env)
	other := p.twin(t)

	t.Run("not redeemed in time", func(t *testing.T) {
		id, token := p.session(t)
		change(t, p, id, "redeem_by = 1, due_at = 1")
		refused(t, p.Instance, token, "", http.StatusGone, "SESSION_ENDED")
		if status, _, body := ask(t, p.Instance, http.MethodGet, "/ws/session", "Authorization", "Bearer "+token); status != http.StatusGone {
			t.Errorf("plain GET: %d %s", status, body)
		}
	})
	t.Run("redeemed in time, reconnects later", func(t *testing.T) {
		b, token, ch := p.conversation(t)
		change(t, p, b.Session, "redeem_by = 1")
		b.Cut()
		b = talk.Connect(t, other, b.Session, token, "")
		b.Expect(`"event":"ready"`)
		goesOn(t, b, ch)
	})
	t.Run("deleted while connected to another instance", func(t *testing.T) {
		id, token := p.session(t)
		b := talk.Connect(t, other, id, token, "")
		b.Expect(`"event":"ready"`)
		deleted := time.Now()
		if status, _, body := ask(t, p.Instance, http.MethodDelete, "/api/v1/sessions/"+id, "X-API-Key", p.apiKey); status != http.StatusNoContent {
			t.Fatalf("DELETE: %d %s", status, body)
		}
		if code := b.CloseCode(); code != 4503 {
			t.Errorf("closed with %d", code)
		}
		if took := time.Since(deleted); took > 15*time.Second { // a second, on a machine that is not busy
			t.Errorf("closed after %s", took)
		}
		refused(t, other, token, "", http.StatusGone, "SESSION_ENDED")
	})
	t.Run("over while connected", func(t *testing.T) {
		id, token := p.session(t)
		change(t, p, id, fmt.Sprintf("expires_at = %d", time.Now().Add(5*time.Second).UnixMilli()))
		b := talk.Connect(t, other, id, token, "")
		b.Expect(`"event":"ready"`)
		if code := b.CloseCode(); code != 4504 {
			t.Errorf("closed with %d", code)
		}
		refused(t, p.Instance, token, "", http.StatusGone, "SESSION_ENDED")
	})
}

// SIGTERM: every socket is told to come back, and resumes on another instance
// without a gap.
func TestDrainedSocketsResumeOnOtherInstance(t *testing.T) {
	t.Parallel()
	const sockets = 20
	env, _ := realStores(t)
	env["SESSION_RECONNECT_JITTER"] = "1s"
	p := newPlace(t, env)
	leaving, proc := serve(t, env)
	rt := talk.StartRuntime(t, p.env)
	type pair struct {
		b             *talk.Browser
		token, cursor string
	}
	var pairs []pair
	for range sockets {
		id, token := p.session(t)
		b := talk.Connect(t, leaving, id, token, "")
		pairs = append(pairs, pair{b, token, b.Expect(`"event":"ready"`, `"reconnectJitterMs":1000`).ReadyStreamID()})
	}
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, c := range pairs {
		if code := c.b.CloseCode(); code != 1012 {
			t.Errorf("closed with %d", code)
		}
	}
	for range sockets {
		talk.SendChat(t, talk.Accept(t, rt), `{"text":"while you were away"}`)
	}
	for _, c := range pairs {
		b := talk.Connect(t, p.Instance, c.b.Session, c.token, "?streamId="+c.cursor)
		b.Expect(`"event":"ready"`, `"resumed":true`)
		b.Expect("while you were away")
		b.Expect(`{"recovered":true,"count":1}`)
	}
	if !proc.Ended(10 * time.Second) {
		t.Error("still running")
	}
}

// A page that asks a draining instance why it got no socket is told that, and not
// that its token is good.
func TestPlainGetReportsDrain(t *testing.T) {
	t.Parallel()
	env, _ := realStores(t)
	p := newPlace(t, env)
	env["DRAIN_DELAY"], env["SHUTDOWN_TIMEOUT"] = "1m", "2m"
	leaving, proc := serve(t, env)
	_, token := p.session(t)
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the drain is told", func() bool {
		status, header, body := ask(t, leaving, http.MethodGet, "/ws/session", "Origin", leaving.URL, "Authorization", "Bearer "+token)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "shutting down") &&
			header.Get("Retry-After") != "" && header.Get("Access-Control-Allow-Origin") == leaving.URL
	})
	refused(t, leaving, token, "", http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE")
	if err := proc.Cmd.Process.Signal(syscall.SIGTERM); err != nil { // and no more delay
		t.Fatal(err)
	}
	proc.Ended(20 * time.Second)
}

// A handshake that is still under way when an instance drains is sent elsewhere,
// and holds nothing up.
func TestHandshakeDuringDrainIsRejected(t *testing.T) {
	t.Parallel()
	env, _ := realStores(t)
	p := newPlace(t, env)
	leaving := p.twin(t)
	id, token := p.session(t)
	db, err := sql.Open("pgx", env["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", id); err != nil { // nobody can redeem it
		t.Fatal(err)
	}
	answered, stopped := make(chan int), make(chan error)
	go func() {
		_, resp, err := talk.Dial(t, leaving, token, "")
		if resp == nil {
			t.Errorf("no answer: %v", err)
			resp = &http.Response{}
		}
		answered <- resp.StatusCode
	}()
	poll.Until(t, "the handshake waits for the database", func() bool {
		var waiting int
		err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&waiting)
		return err == nil && waiting > 0
	})
	go func() { stopped <- leaving.Stop() }()
	poll.Until(t, "the instance drains", func() bool { return leaving.Log.Has("draining") })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if status := <-answered; status != http.StatusServiceUnavailable {
		t.Errorf("answered %d", status)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	talk.Connect(t, p.Instance, id, token, "").Expect(`"event":"ready"`)
}
