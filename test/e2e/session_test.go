package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// tokenResponse is the body of the response of POST /sessions/token.
type tokenResponse struct {
	SessionID    string   `json:"sessionId"`
	Token        string   `json:"token"`
	TokenType    string   `json:"tokenType"`
	Mode         string   `json:"mode"`
	EndpointID   string   `json:"endpointId"`
	RedeemBy     string   `json:"redeemBy"`
	ExpiresAt    string   `json:"expiresAt"`
	WSURL        string   `json:"wsUrl"`
	Subprotocols []string `json:"subprotocols"`
	ICEServers   []struct {
		URLs                 []string
		Username, Credential string
	} `json:"iceServers"`
	Limits map[string]int `json:"limits"`
}

const tokenPath = "/api/v1/sessions/token"

// issue creates a session on the tenant's endpoint. members are further members
// of the request body.
func issue(t *testing.T, i *harness.Instance, tenant harness.Tenant, members string, headers ...string) tokenResponse {
	t.Helper()
	body := fmt.Sprintf(`{"endpointId":%q,%s}`, tenant.Endpoint.ID, members)
	resp, text := i.Post(t, tokenPath, strings.Replace(body, ",}", "}", 1), append(headers, "X-API-Key", tenant.Key)...)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("POST %s %s: %d %s, want 201", tokenPath, body, resp.StatusCode, text)
	}
	var got tokenResponse
	testkit.Must(t, json.Unmarshal([]byte(text), &got))
	return got
}

func sessionState(t *testing.T, i *harness.Instance, tenant harness.Tenant, id string) string {
	t.Helper()
	var view struct{ State string }
	getJSON(t, i, "/api/v1/sessions/"+id, tenant.Key, &view)
	return view.State
}

func TestSessionIsIssuedAndRevoked(t *testing.T) {
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i := harness.Start(t, env)
		tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
		before := time.Now().Truncate(time.Second)
		s := issue(t, i, tenant, "")
		if !regexp.MustCompile(`^ses_[A-Za-z0-9._:-]{1,124}$`).MatchString(s.SessionID) || s.TokenType != "call" || s.Mode != "webrtc" ||
			s.EndpointID != tenant.Endpoint.ID || strings.Join(s.Subprotocols, " ") != "telapi.v1" || len(s.ICEServers) != 0 {
			t.Errorf("response is %+v, want a call token for mode webrtc and endpoint %s", s, tenant.Endpoint.ID)
		}
		if want := "ws" + strings.TrimPrefix(i.URL, "http") + "/ws/session"; s.WSURL != want {
			t.Errorf("wsUrl %s, want %s", s.WSURL, want)
		}
		for name, want := range map[string]int{"frameBytes": 65536, "queuedBytes": 1 << 20, "framesPerSecond": 60, "historyMessages": 300, "historySeconds": 600, "pingIntervalMs": 25000} {
			testkit.Equal(t, fmt.Sprintf("limit %s", name), s.Limits[name], want)
		}
		var claims jwt.MapClaims
		secrets := auth.Secrets{Current: harness.Secret}.ForCallTokens()
		if _, err := jwt.ParseWithClaims(s.Token, &claims, func(*jwt.Token) (any, error) { return []byte(secrets.Current.Reveal()), nil }, jwt.WithValidMethods([]string{"HS256"})); err != nil {
			t.Fatal(err)
		}
		iat := int64(claims["iat"].(float64))
		for claim, want := range map[string]any{
			"iss": "telapi", "aud": "telapi:session", "sub": s.SessionID, "teamId": tenant.Team.ID, "endpointId": tenant.Endpoint.ID, "mode": "webrtc",
			"exp": float64(iat + 3600), "rdm": float64(iat + 300),
		} {
			testkit.Equal(t, fmt.Sprintf("claim %s", claim), claims[claim], want)
		}
		if iat < before.Unix() || claims["jti"] == "" || s.ExpiresAt != time.Unix(iat+3600, 0).UTC().Format(time.RFC3339) || s.RedeemBy != time.Unix(iat+300, 0).UTC().Format(time.RFC3339) {
			t.Errorf("claims %v do not match the times in %+v", claims, s)
		}

		path := "/api/v1/sessions/" + s.SessionID
		expectStatus(t, 200, `"state":"issued"`)(i.Call(t, "GET", path, "X-API-Key", tenant.Key))
		for _, method := range []string{"GET", "DELETE"} {
			expectStatus(t, 404, code("NOT_FOUND"))(i.Call(t, method, path, "X-API-Key", foreign.Key))
			expectStatus(t, 404, code("NOT_FOUND"))(i.Call(t, method, "/api/v1/sessions/ses_none", "X-API-Key", tenant.Key))
			// The REST API does not accept call tokens.
			expectStatus(t, 401, code("UNAUTHORIZED"))(i.Call(t, method, path, "Authorization", "Bearer "+s.Token))
		}
		for range 2 { // DELETE is idempotent
			expectStatus(t, 204, "")(i.Call(t, "DELETE", path, "X-API-Key", tenant.Key))
		}
		resp, body := i.Call(t, "GET", path, "X-API-Key", tenant.Key)
		wantStatus(t, resp, body, 200, `"state":"revoked"`)
		testkit.Contains(t, "body", body, `"endedAt"`)
		if i.Log.Has(s.Token) {
			t.Error("the log contains the call token")
		}
	})
}

func TestSocketURLUsesPublicAddress(t *testing.T) {
	for _, c := range []struct {
		name    string
		env     harness.Env
		headers []string
		want    string // empty: the address of the instance
	}{
		{"configured", harness.Env{"PUBLIC_URL": "https://api.example/base/"}, []string{"X-Forwarded-Host", "evil.example"}, "wss://api.example/base/ws/session"},
		{"trusted proxy", harness.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "api.example:8443"}, "wss://api.example:8443/ws/session"},
		{"headers from an untrusted client", nil, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := harness.Start(t, c.env)
			want := c.want
			if want == "" {
				want = "ws" + strings.TrimPrefix(i.URL, "http") + "/ws/session"
			}
			if s := issue(t, i, harness.NewTenant(t, i, "tenant"), `"mode":"chat"`, c.headers...); s.WSURL != want {
				t.Errorf("wsUrl %s, want %s", s.WSURL, want)
			}
		})
	}
}

// A session is connected while a browser is connected to any instance.
func TestSessionStateFollowsConnection(t *testing.T) {
	env := realStores(t)
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant := harness.NewTenant(t, a, "tenant")
	session, token := tenant.Session(t, a)
	for on, other := range map[*harness.Instance]*harness.Instance{a: b, b: a} {
		browser := harness.Connect(t, on, session, token, "")
		browser.Expect(`"event":"ready"`)
		testkit.Equal(t, "state on the other instance", sessionState(t, other, tenant, session), "connected")
		_ = browser.Conn.Close()
		testkit.Until(t, "the session is disconnected", func() bool { return sessionState(t, other, tenant, session) == "disconnected" })
	}
}

// The texts of browser actions are in no file, and after a session has ended neither are
// its other texts: while the server runs, and after it has stopped. A runtime that has not
// read them before a restart receives the entries without them.
func TestTextsAreKeptOutOfFiles(t *testing.T) {
	t.Parallel()
	env := harness.WithDataDir(t, harness.Env{"LOG_LEVEL": "debug"})
	i, tenant := startTenant(t, env)
	connect := func(text string) (session, action string) {
		session, b := openSession(t, i, tenant)
		b.Expect(`"event":"ack"`, b.Chat(text))
		action = b.Send("browser_action", "browserAction", `{"type":"voice","transcript":"swordfish `+text+`"}`)
		b.Expect(`"event":"ack"`, action)
		return session, action
	}
	live, liveAction := connect("herring")
	ended, endedAction := connect("halibut")
	files := func() string { return readAllFiles(t, env["DATA_DIR"]) }
	absent := func(when string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			wantNotLeaked(t, map[string]string{when + ", a file": files()}, map[string]string{"text": text})
		}
	}
	testkit.Until(t, "a snapshot with both conversations", func() bool {
		all := files()
		return strings.Contains(all, `"herring"`) && strings.Contains(all, `"halibut"`) &&
			strings.Count(all, liveAction) > 1 && strings.Count(all, endedAction) > 1 // in the database and in the snapshot
	})
	absent("while the server runs", "swordfish")

	if resp, body := i.Call(t, "DELETE", "/api/v1/sessions/"+ended, "X-API-Key", tenant.Key); resp.StatusCode != 204 {
		t.Fatalf("end the session: %d %s", resp.StatusCode, body)
	}
	testkit.Until(t, "a snapshot without the texts of the ended session", func() bool { return !strings.Contains(files(), "halibut") })
	absent("after DELETE", "swordfish")
	testkit.Must(t, i.Stop())
	absent("after the stop", "swordfish", "halibut")

	i = harness.Start(t, env)
	r := harness.StartRuntime(t, i)
	texts := map[string]string{live: `"herring"`, ended: `"[redacted]"`}
	for range len(texts) {
		ch := harness.Accept(t, r)
		want := texts[ch.ID]
		var chat, action string
		for chat == "" || action == "" {
			if m := harness.Receive(t, ch).Message; m != nil {
				chat, action = chat+string(m.Chat), action+string(m.BrowserAction)
			}
		}
		if !strings.Contains(chat, want) || action != `{"type":"voice","transcript":"[redacted]"}` {
			t.Errorf("after the restart, the runtime received %s and %s, want %s and a redacted action", chat, action, want)
		}
	}
}

// ignoreRemoved returns nil for a file that was replaced or removed meanwhile.
func ignoreRemoved(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func readAllFiles(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreRemoved(err)
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return ignoreRemoved(err)
	})
	if err != nil || all.Len() == 0 {
		t.Fatalf("read %s: %v", dir, err)
	}
	return all.String()
}
