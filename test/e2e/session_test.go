package e2e

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/test/boot"
	"telapi/test/poll"
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
func issue(t *testing.T, i *boot.Instance, own boot.Tenant, members string, headers ...string) tokenResponse {
	t.Helper()
	body := fmt.Sprintf(`{"endpointId":%q,%s}`, own.Endpoint.ID, members)
	resp, text := i.Post(t, tokenPath, strings.Replace(body, ",}", "}", 1), append(headers, "X-API-Key", own.Key)...)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %d %s", body, resp.StatusCode, text)
	}
	var got tokenResponse
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func sessionState(t *testing.T, i *boot.Instance, own boot.Tenant, id string) string {
	t.Helper()
	var view struct{ State string }
	getJSON(t, i, "/api/v1/sessions/"+id, own.Key, &view)
	return view.State
}

func TestSessionIsIssuedAndRevoked(t *testing.T) {
	onAllStores(t, func(t *testing.T, env boot.Env) {
		i := boot.Start(t, env)
		own, foreign := boot.NewTenant(t, i, "own"), boot.NewTenant(t, i, "foreign")
		before := time.Now().Truncate(time.Second)
		s := issue(t, i, own, "")
		if !regexp.MustCompile(`^ses_[A-Za-z0-9._:-]{1,124}$`).MatchString(s.SessionID) || s.TokenType != "call" || s.Mode != "webrtc" ||
			s.EndpointID != own.Endpoint.ID || strings.Join(s.Subprotocols, " ") != "telapi.v1" || len(s.ICEServers) != 0 {
			t.Errorf("response is %+v", s)
		}
		if want := "ws" + strings.TrimPrefix(i.URL, "http") + "/ws/session"; s.WSURL != want {
			t.Errorf("wsUrl %s, want %s", s.WSURL, want)
		}
		for name, want := range map[string]int{"frameBytes": 65536, "queuedBytes": 1 << 20, "framesPerSecond": 60, "historyMessages": 300, "historySeconds": 600, "pingIntervalMs": 25000} {
			if s.Limits[name] != want {
				t.Errorf("limit %s is %d, want %d", name, s.Limits[name], want)
			}
		}
		var claims jwt.MapClaims
		if _, err := jwt.ParseWithClaims(s.Token, &claims, func(*jwt.Token) (any, error) { return []byte(boot.Secret), nil }, jwt.WithValidMethods([]string{"HS256"})); err != nil {
			t.Fatal(err)
		}
		iat := int64(claims["iat"].(float64))
		for claim, want := range map[string]any{
			"iss": "telapi", "aud": "telapi:session", "sub": s.SessionID, "teamId": own.Team.ID, "endpointId": own.Endpoint.ID, "mode": "webrtc",
			"exp": float64(iat + 3600), "rdm": float64(iat + 300),
		} {
			if claims[claim] != want {
				t.Errorf("claim %s is %v, want %v", claim, claims[claim], want)
			}
		}
		if iat < before.Unix() || claims["jti"] == "" || s.ExpiresAt != time.Unix(iat+3600, 0).UTC().Format(time.RFC3339) || s.RedeemBy != time.Unix(iat+300, 0).UTC().Format(time.RFC3339) {
			t.Errorf("claims %v for %+v", claims, s)
		}

		path := "/api/v1/sessions/" + s.SessionID
		resp, body := i.Call(t, "GET", path, "X-API-Key", own.Key)
		wantStatus(t, resp, body, 200, `"state":"issued"`)
		for _, method := range []string{"GET", "DELETE"} {
			resp, body = i.Call(t, method, path, "X-API-Key", foreign.Key)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
			resp, body = i.Call(t, method, "/api/v1/sessions/ses_none", "X-API-Key", own.Key)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
			// The REST API does not accept call tokens.
			resp, body = i.Call(t, method, path, "Authorization", "Bearer "+s.Token)
			wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
		}
		for range 2 { // DELETE is idempotent
			resp, body = i.Call(t, "DELETE", path, "X-API-Key", own.Key)
			wantStatus(t, resp, body, 204, "")
		}
		resp, body = i.Call(t, "GET", path, "X-API-Key", own.Key)
		wantStatus(t, resp, body, 200, `"state":"revoked"`)
		if !strings.Contains(body, `"endedAt"`) {
			t.Errorf("revoked session is %s, want endedAt", body)
		}
		if i.Log.Has(s.Token) {
			t.Error("the log contains the call token")
		}
	})
}

func TestTokenRequestValidation(t *testing.T) {
	i := boot.Start(t, nil)
	own := boot.NewTenant(t, i, "own")
	long := strings.Repeat("é", 256)
	for _, members := range []string{
		`"mode":"audio"`, `"mode":"chat"`, `"mode":"webrtc"`, `"mode":null`, `"ttlSeconds":10`, `"ttlSeconds":3600`, `"ttlSeconds":10.0`, `"ttlSeconds":3e2`,
		`"maxSessionSeconds":60`, `"maxSessionSeconds":86400`, `"maxSessionSeconds":60,"ttlSeconds":60`, `"duplicatePolicy":"replace"`, `"duplicatePolicy":"reject"`,
		`"identity":{}`, `"identity":null`, `"identity":{"id":"` + long + `","name":"` + long + `"}`, `"identity":{"id":"a","more":1}`,
		`"metadata":{}`, `"metadata":null`, `"metadata":{"x":"` + strings.Repeat("a", 4096-8) + `"}`, `"metadata":{ "n" : 1e400 }`, `"somethingNew":[1]`,
		`"metadata":{"x":"` + strings.Repeat("a", 4096-8) + `"   ` + strings.Repeat(" ", 100) + `}`,
	} {
		issue(t, i, own, members)
	}
	if s := issue(t, i, own, `"maxSessionSeconds":60`); s.RedeemBy != s.ExpiresAt {
		t.Errorf("redeemBy of a one-minute session is %s, want expiresAt, %s", s.RedeemBy, s.ExpiresAt)
	}
	id := own.Endpoint.ID
	for body, paths := range map[string]string{
		`{}`:                                 "/endpointId",
		`null`:                               "/endpointId",
		`{"endpointId":null}`:                "/endpointId",
		`{"endpointId":""}`:                  "/endpointId",
		`{"endpointId":7}`:                   "/endpointId",
		`{"EndpointId":"` + id + `"}`:        "/endpointId",
		`[]`:                                 "",
		`"x"`:                                "",
		`{"endpointId":"x","mode":"fax"}`:    "/mode",
		`{"endpointId":"x","mode":""}`:       "/mode",
		`{"endpointId":"x","mode":["chat"]}`: "/mode",
		`{"endpointId":"x","ttlSeconds":9}`:  "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":3601,"maxSessionSeconds":86400}`:                                     "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":10.5}`:                                                               "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":"60"}`:                                                               "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":1e400}`:                                                              "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":-9223372036854775809}`:                                               "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":301,"maxSessionSeconds":300}`:                                        "/ttlSeconds",
		`{"endpointId":"x","maxSessionSeconds":59}`:                                                          "/maxSessionSeconds",
		`{"endpointId":"x","maxSessionSeconds":86401}`:                                                       "/maxSessionSeconds",
		`{"endpointId":"x","duplicatePolicy":"keep"}`:                                                        "/duplicatePolicy",
		`{"endpointId":"x","identity":"me"}`:                                                                 "/identity",
		`{"endpointId":"x","identity":{"id":1,"name":true}}`:                                                 "/identity/id /identity/name",
		`{"endpointId":"x","identity":{"id":"` + long + `é"}}`:                                               "/identity/id",
		`{"endpointId":"x","identity":{"name":"a\nb"}}`:                                                      "/identity/name",
		`{"endpointId":"x","metadata":[]}`:                                                                   "/metadata",
		`{"endpointId":"x","metadata":"{}"}`:                                                                 "/metadata",
		`{"endpointId":"x","metadata":{"x":"` + strings.Repeat("a", 4096-7) + `"}}`:                          "/metadata",
		`{"mode":"fax","ttlSeconds":1,"maxSessionSeconds":1,"duplicatePolicy":1,"identity":[],"metadata":1}`: "/mode /ttlSeconds /maxSessionSeconds /duplicatePolicy /identity /metadata /endpointId",
	} {
		resp, text := i.Post(t, tokenPath, body, "X-API-Key", own.Key)
		wantStatus(t, resp, text, 400, code("VALIDATION_ERROR"))
		for path := range strings.SplitSeq(paths, " ") {
			if !strings.Contains(text, fmt.Sprintf(`"path":%q`, path)) {
				t.Errorf("%.100s: got %s, want an issue at %q", body, text, path)
			}
		}
		if n := strings.Count(text, `"path":`); n != len(strings.Split(paths, " ")) {
			t.Errorf("%.100s: %d issues in %s", body, n, text)
		}
	}
}

func TestMalformedTokenRequestsAreRejected(t *testing.T) {
	i := boot.Start(t, nil)
	own := boot.NewTenant(t, i, "own")
	good := fmt.Sprintf(`{"endpointId":%q}`, own.Endpoint.ID)
	for name, c := range map[string]struct {
		body, contentType string
		status            int
		code              string
	}{
		"empty":                    {"", "application/json", 400, "MALFORMED_JSON"},
		"truncated":                {good[:len(good)-1], "application/json", 400, "MALFORMED_JSON"},
		"two values":               {good + good, "application/json", 400, "MALFORMED_JSON"},
		"duplicate member":         {`{"endpointId":"a","endpointId":"b"}`, "application/json", 400, "MALFORMED_JSON"},
		"nested duplicate member":  {`{"metadata":{"a":{"b":1,"b":2}}}`, "application/json", 400, "MALFORMED_JSON"},
		"not UTF-8":                {"{\"endpointId\":\"\xff\"}", "application/json", 400, "MALFORMED_JSON"},
		"unpaired surrogate":       {`{"endpointId":"\ud800"}`, "application/json", 400, "MALFORMED_JSON"},
		"deeply nested":            {`{"metadata":` + strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}`, "application/json", 400, "MALFORMED_JSON"},
		"many open brackets":       {strings.Repeat("[", 60_000), "application/json", 400, "MALFORMED_JSON"},
		"NaN":                      {`{"ttlSeconds":NaN}`, "application/json", 400, "MALFORMED_JSON"},
		"byte order mark":          {"\ufeff" + good, "application/json", 400, "MALFORMED_JSON"},
		"64 KiB":                   {strings.Repeat(" ", 64<<10-len(good)) + good, "application/json", 201, "sessionId"},
		"64 KiB + 1 byte":          {strings.Repeat(" ", 64<<10-len(good)+1) + good, "application/json", 413, "PAYLOAD_TOO_LARGE"},
		"no content type":          {good, "", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"text/plain":               {good, "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"form":                     {good, "application/x-www-form-urlencoded", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"problem+json":             {good, "application/problem+json", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"other charset":            {good, "application/json; charset=latin1", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"UTF-8 in other notation":  {good, `Application/JSON; Charset="UTF-8"`, 201, "sessionId"},
		"invalid content type":     {good, "application/json; =", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"endpoint with a NUL byte": {`{"endpointId":"\u0000"}`, "application/json", 404, "NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, text := i.Post(t, tokenPath, c.body, "X-API-Key", own.Key, "Content-Type", c.contentType)
			wantStatus(t, resp, text, c.status, c.code)
		})
	}
	resp, text := i.Post(t, tokenPath, good, "X-API-Key", own.Key, "Content-Encoding", "gzip")
	wantStatus(t, resp, text, 415, code("UNSUPPORTED_MEDIA_TYPE"))
	for _, key := range []string{strings.Repeat("k", 256), "with space", "ümlaut"} {
		resp, text = i.Post(t, tokenPath, `{"ttlSeconds":1}`, "X-API-Key", own.Key, "Idempotency-Key", key)
		wantStatus(t, resp, text, 400, `"path":"/header/Idempotency-Key"`)
		if !strings.Contains(text, "/ttlSeconds") || !strings.Contains(text, "/endpointId") {
			t.Errorf("got %s, want issues at /ttlSeconds and /endpointId too", text)
		}
	}
}

// Checks run in the order credential, scope, body, endpoint, mode. The first that
// fails decides the response.
func TestTokenRequestCheckOrder(t *testing.T) {
	for _, webRTC := range []bool{true, false} {
		i := boot.Start(t, boot.Env{"FEATURE_WEBRTC": fmt.Sprint(webRTC)})
		own, foreign := boot.NewTenant(t, i, "own"), boot.NewTenant(t, i, "foreign")
		_, noScope := boot.NewKey(t, i, own.Team.ID, auth.ReadTeamApps)
		chat, err := i.App.Admin().Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: own.Team.ID, Name: "chat only", Modes: []endpoint.Mode{endpoint.Chat}})
		if err != nil {
			t.Fatal(err)
		}
		disabled := boot.NewEndpoint(t, i, endpoint.Endpoint{TeamID: own.Team.ID, Name: "disabled", Modes: endpoint.Modes}).ID
		if _, err := i.App.Admin().Endpoints.Update(t.Context(), disabled, func(e *endpoint.Endpoint) { e.Enabled = false }); err != nil {
			t.Fatal(err)
		}
		body := func(id, mode string) string { return fmt.Sprintf(`{"endpointId":%q,"mode":%q}`, id, mode) }
		unsupported, supported := 503, 503
		if webRTC {
			unsupported, supported = 400, 201
		}
		for _, c := range []struct {
			name, key, body string
			status          int
		}{
			{"no credential, bad body", "tk_x_x", `{`, 401},
			{"no scope, bad body", noScope, `{`, 403},
			{"bad body, unknown endpoint", own.Key, body("ep_none", "fax"), 400},
			{"unknown endpoint", own.Key, body("ep_none", "webrtc"), 404},
			{"foreign endpoint", own.Key, body(foreign.Endpoint.ID, "webrtc"), 404},
			{"disabled endpoint", own.Key, body(disabled, "webrtc"), 404},
			{"disabled endpoint, chat", own.Key, body(disabled, "chat"), 404},
			{"webrtc on an endpoint without it", own.Key, body(chat.ID, "webrtc"), unsupported},
			{"audio on an endpoint without it", own.Key, body(chat.ID, "audio"), 400},
			{"webrtc", own.Key, body(own.Endpoint.ID, "webrtc"), supported},
			{"chat", own.Key, body(own.Endpoint.ID, "chat"), 201},
			{"audio", own.Key, body(own.Endpoint.ID, "audio"), 201},
		} {
			resp, text := i.Post(t, tokenPath, c.body, "X-API-Key", c.key)
			if resp.StatusCode != c.status || c.status == 503 && !strings.Contains(text, code("WEBRTC_DISABLED")) {
				t.Errorf("FEATURE_WEBRTC=%v, %s: got %d %s, want %d", webRTC, c.name, resp.StatusCode, text, c.status)
			}
		}
	}
}

func TestIdempotencyKeyIsSharedByInstances(t *testing.T) {
	env := realStores(t)
	a, b := boot.Start(t, env), boot.Start(t, env)
	own, other := boot.NewTenant(t, a, "own"), boot.NewTenant(t, a, "other")
	first := issue(t, a, own, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1")
	again := issue(t, b, own, "  \"metadata\" : {\"b\":[2], \"a\":1}, \"mode\":\"\\u0063hat\"", "Idempotency-Key", "order-1")
	if again.SessionID != first.SessionID || again.Token != first.Token || again.ExpiresAt != first.ExpiresAt {
		t.Errorf("first response\n%+v, response to the same request\n%+v", first, again)
	}
	resp, body := b.Post(t, tokenPath, fmt.Sprintf(`{"endpointId":%q,"mode":"chat"}`, own.Endpoint.ID), "X-API-Key", own.Key, "Idempotency-Key", "order-1")
	wantStatus(t, resp, body, 409, code("IDEMPOTENCY_CONFLICT"))
	if theirs := issue(t, b, other, `"mode":"chat"`, "Idempotency-Key", "order-1"); theirs.SessionID == first.SessionID {
		t.Error("two teams share an idempotency key")
	}

	t.Run("ended session", func(t *testing.T) {
		resp, body := a.Call(t, "DELETE", "/api/v1/sessions/"+first.SessionID, "X-API-Key", own.Key)
		wantStatus(t, resp, body, 204, "")
		if again := issue(t, b, own, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1"); again.Token != first.Token {
			t.Error("the response has another token")
		}
	})
	t.Run("rejected request is not stored", func(t *testing.T) {
		resp, body := a.Post(t, tokenPath, `{"endpointId":"ep_none"}`, "X-API-Key", own.Key, "Idempotency-Key", "order-2")
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		issue(t, b, own, `"mode":"chat"`, "Idempotency-Key", "order-2")
	})
	t.Run("concurrent requests", func(t *testing.T) {
		var mu sync.Mutex
		tokens := map[string]bool{}
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() {
				s := issue(t, []*boot.Instance{a, b}[n%2], own, `"mode":"audio"`, "Idempotency-Key", "order-3")
				mu.Lock()
				defer mu.Unlock()
				tokens[s.SessionID+s.Token] = true
			})
		}
		wg.Wait()
		if len(tokens) != 1 {
			t.Errorf("16 concurrent requests got %d sessions, want 1", len(tokens))
		}
	})
}

func TestWebRTCSessionGetsTURNCredentials(t *testing.T) {
	i := boot.Start(t, boot.Env{"WEBRTC_ICE_SERVERS": "stun:stun.example:3478,turn:turn.example?transport=udp", "TURN_SHARED_SECRET": "north"})
	own := boot.NewTenant(t, i, "own")
	s := issue(t, i, own, `"maxSessionSeconds":600`)
	if len(s.ICEServers) != 2 || s.ICEServers[0].URLs[0] != "stun:stun.example:3478" || s.ICEServers[0].Username != "" {
		t.Fatalf("ICE servers %+v", s.ICEServers)
	}
	expires, err := time.Parse(time.RFC3339, s.ExpiresAt)
	if err != nil {
		t.Fatal(err)
	}
	username := fmt.Sprintf("%d:%s", expires.Unix(), s.SessionID)
	mac := hmac.New(sha1.New, []byte("north"))
	mac.Write([]byte(username))
	if turn := s.ICEServers[1]; turn.Username != username || turn.Credential != base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
		t.Errorf("TURN server %+v, want the user name %s", turn, username)
	}
	if chat := issue(t, i, own, `"mode":"chat"`); len(chat.ICEServers) != 0 {
		t.Errorf("chat session has ICE servers: %+v", chat.ICEServers)
	}
}

func TestSocketURLUsesPublicAddress(t *testing.T) {
	for _, c := range []struct {
		name    string
		env     boot.Env
		headers []string
		want    string
	}{
		{"configured", boot.Env{"PUBLIC_URL": "https://api.example/base/"}, []string{"X-Forwarded-Host", "evil.example"}, "wss://api.example/base/ws/session"},
		{"trusted proxy", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "api.example:8443"}, "wss://api.example:8443/ws/session"},
		{"two trusted proxies", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "https, http", "X-Forwarded-Host", "api.example, inner"}, "wss://api.example/ws/session"},
		{"invalid headers from a trusted proxy", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "gopher", "X-Forwarded-Host", "a@b/c"}, ""},
		{"headers from an untrusted client", nil, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := boot.Start(t, c.env)
			want := c.want
			if want == "" {
				want = "ws" + strings.TrimPrefix(i.URL, "http") + "/ws/session"
			}
			if s := issue(t, i, boot.NewTenant(t, i, "own"), `"mode":"chat"`, c.headers...); s.WSURL != want {
				t.Errorf("wsUrl %s, want %s", s.WSURL, want)
			}
		})
	}
}

func TestUnredeemedSessionExpires(t *testing.T) {
	i := boot.Start(t, nil)
	own := boot.NewTenant(t, i, "own")
	s := issue(t, i, own, `"ttlSeconds":10`)
	var body string
	poll.Until(t, "the session ends", func() bool {
		_, body = i.Call(t, "GET", "/api/v1/sessions/"+s.SessionID, "X-API-Key", own.Key)
		return strings.Contains(body, `"endedAt"`)
	})
	if !strings.Contains(body, `"state":"expired"`) {
		t.Errorf("ended session is %s, want expired", body)
	}
	if other := issue(t, i, own, `"ttlSeconds":60`); sessionState(t, i, own, other.SessionID) != "issued" {
		t.Error("a session with a longer TTL expired")
	}
}
