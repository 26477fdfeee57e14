package e2e

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
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

// issued is the answer to a request for a token.
type issued struct {
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

// post sends a body as JSON, unless the headers say otherwise.
func post(t *testing.T, i *boot.Instance, path, body string, headers ...string) (answer, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for h := 0; h+1 < len(headers); h += 2 {
		req.Header.Del(headers[h])
		if headers[h+1] != "" {
			req.Header.Set(headers[h], headers[h+1])
		}
	}
	resp, err := i.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, resp.Request}, string(text)
}

const tokenPath = "/api/v1/sessions/token"

// issue asks for a session on the tenant's endpoint, with some members of the
// body besides.
func issue(t *testing.T, i *boot.Instance, own tenant, members string, headers ...string) issued {
	t.Helper()
	body := fmt.Sprintf(`{"endpointId":%q,%s}`, own.endpoint.ID, members)
	resp, text := post(t, i, tokenPath, strings.Replace(body, ",}", "}", 1), append(headers, "X-API-Key", own.key)...)
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %d %s", body, resp.StatusCode, text)
	}
	var got issued
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func stateOf(t *testing.T, i *boot.Instance, own tenant, id string) string {
	t.Helper()
	var view struct{ State string }
	callJSON(t, i, "/api/v1/sessions/"+id, own.key, &view)
	return view.State
}

func TestSessionIsIssuedAndRevoked(t *testing.T) {
	backends(t, func(t *testing.T, env boot.Env) {
		i := boot.Start(t, env)
		own, foreign := newTenant(t, i, "own"), newTenant(t, i, "foreign")
		before := time.Now().Truncate(time.Second)
		s := issue(t, i, own, "")
		if !regexp.MustCompile(`^ses_[A-Za-z0-9._:-]{1,124}$`).MatchString(s.SessionID) || s.TokenType != "call" || s.Mode != "webrtc" ||
			s.EndpointID != own.endpoint.ID || strings.Join(s.Subprotocols, " ") != "telapi.v1" || len(s.ICEServers) != 0 {
			t.Errorf("answer %+v", s)
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
			"iss": "telapi", "aud": "telapi:session", "sub": s.SessionID, "teamId": own.team.ID, "endpointId": own.endpoint.ID, "mode": "webrtc",
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
		resp, body := call(t, i, "GET", path, "X-API-Key", own.key)
		wantStatus(t, resp, body, 200, `"state":"issued"`)
		for _, method := range []string{"GET", "DELETE"} {
			resp, body = call(t, i, method, path, "X-API-Key", foreign.key)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
			resp, body = call(t, i, method, "/api/v1/sessions/ses_none", "X-API-Key", own.key)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
			// A call token is no credential of the REST API.
			resp, body = call(t, i, method, path, "Authorization", "Bearer "+s.Token)
			wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
		}
		for range 2 { // deleting twice does no harm
			resp, body = call(t, i, "DELETE", path, "X-API-Key", own.key)
			wantStatus(t, resp, body, 204, "")
		}
		resp, body = call(t, i, "GET", path, "X-API-Key", own.key)
		wantStatus(t, resp, body, 200, `"state":"revoked"`)
		if !strings.Contains(body, `"endedAt"`) {
			t.Errorf("a revoked session has no end: %s", body)
		}
		if i.Log.Has(s.Token) {
			t.Error("the log holds a call token")
		}
	})
}

func TestTokenRequestValidation(t *testing.T) {
	i := boot.Start(t, nil)
	own := newTenant(t, i, "own")
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
		t.Errorf("a session of a minute may be redeemed until %s and ends at %s", s.RedeemBy, s.ExpiresAt)
	}
	id := own.endpoint.ID
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
		resp, text := post(t, i, tokenPath, body, "X-API-Key", own.key)
		wantStatus(t, resp, text, 400, code("VALIDATION_ERROR"))
		for path := range strings.SplitSeq(paths, " ") {
			if !strings.Contains(text, fmt.Sprintf(`"path":%q`, path)) {
				t.Errorf("%.100s: no issue at %q in %s", body, path, text)
			}
		}
		if n := strings.Count(text, `"path":`); n != len(strings.Split(paths, " ")) {
			t.Errorf("%.100s: %d issues in %s", body, n, text)
		}
	}
}

func TestMalformedTokenRequestsAreRejected(t *testing.T) {
	i := boot.Start(t, nil)
	own := newTenant(t, i, "own")
	good := fmt.Sprintf(`{"endpointId":%q}`, own.endpoint.ID)
	for name, c := range map[string]struct {
		body, contentType string
		status            int
		code              string
	}{
		"empty":                   {"", "application/json", 400, "MALFORMED_JSON"},
		"cut off":                 {good[:len(good)-1], "application/json", 400, "MALFORMED_JSON"},
		"two values":              {good + good, "application/json", 400, "MALFORMED_JSON"},
		"name twice":              {`{"endpointId":"a","endpointId":"b"}`, "application/json", 400, "MALFORMED_JSON"},
		"name twice, deep down":   {`{"metadata":{"a":{"b":1,"b":2}}}`, "application/json", 400, "MALFORMED_JSON"},
		"not UTF-8":               {"{\"endpointId\":\"\xff\"}", "application/json", 400, "MALFORMED_JSON"},
		"half a surrogate":        {`{"endpointId":"\ud800"}`, "application/json", 400, "MALFORMED_JSON"},
		"nested without end":      {`{"metadata":` + strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}`, "application/json", 400, "MALFORMED_JSON"},
		"brackets without end":    {strings.Repeat("[", 60_000), "application/json", 400, "MALFORMED_JSON"},
		"not a number":            {`{"ttlSeconds":NaN}`, "application/json", 400, "MALFORMED_JSON"},
		"byte order mark":         {"\ufeff" + good, "application/json", 400, "MALFORMED_JSON"},
		"64 KiB of white space":   {strings.Repeat(" ", 64<<10-len(good)) + good, "application/json", 201, "sessionId"},
		"64 KiB and one byte":     {strings.Repeat(" ", 64<<10-len(good)+1) + good, "application/json", 413, "PAYLOAD_TOO_LARGE"},
		"no content type":         {good, "", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"text":                    {good, "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"a form":                  {good, "application/x-www-form-urlencoded", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"a relative of JSON":      {good, "application/problem+json", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"another character set":   {good, "application/json; charset=latin1", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"UTF-8, in other words":   {good, `Application/JSON; Charset="UTF-8"`, 201, "sessionId"},
		"garbage for a type":      {good, "application/json; =", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"endpoint of no database": {`{"endpointId":"\u0000"}`, "application/json", 404, "NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, text := post(t, i, tokenPath, c.body, "X-API-Key", own.key, "Content-Type", c.contentType)
			wantStatus(t, resp, text, c.status, c.code)
		})
	}
	resp, text := post(t, i, tokenPath, good, "X-API-Key", own.key, "Content-Encoding", "gzip")
	wantStatus(t, resp, text, 415, code("UNSUPPORTED_MEDIA_TYPE"))
	for _, key := range []string{strings.Repeat("k", 256), "with space", "ümlaut"} {
		resp, text = post(t, i, tokenPath, `{"ttlSeconds":1}`, "X-API-Key", own.key, "Idempotency-Key", key)
		wantStatus(t, resp, text, 400, `"path":"/header/Idempotency-Key"`)
		if !strings.Contains(text, "/ttlSeconds") || !strings.Contains(text, "/endpointId") {
			t.Errorf("not all issues at once: %s", text)
		}
	}
}

// Credential, scope, body, endpoint, mode: the first that is wrong is told.
func TestTokenRequestCheckOrder(t *testing.T) {
	for _, webRTC := range []bool{true, false} {
		i := boot.Start(t, boot.Env{"FEATURE_WEBRTC": fmt.Sprint(webRTC)})
		own, foreign := newTenant(t, i, "own"), newTenant(t, i, "foreign")
		_, noScope := newKey(t, i, own.team.ID, auth.ReadTeamApps)
		chat, err := i.App.Admin().Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: own.team.ID, Name: "chat only", Modes: []endpoint.Mode{endpoint.Chat}})
		if err != nil {
			t.Fatal(err)
		}
		disabled := newEndpoint(t, i, own.team.ID, "disabled")
		if _, err := i.App.Admin().Endpoints.Update(t.Context(), disabled, func(e *endpoint.Endpoint) { e.Enabled = false }); err != nil {
			t.Fatal(err)
		}
		body := func(id, mode string) string { return fmt.Sprintf(`{"endpointId":%q,"mode":%q}`, id, mode) }
		lackingOrOff, onOrOff := 503, 503
		if webRTC {
			lackingOrOff, onOrOff = 400, 201
		}
		for _, c := range []struct {
			name, key, body string
			status          int
		}{
			{"no credential, bad body", "tk_x_x", `{`, 401},
			{"no scope, bad body", noScope, `{`, 403},
			{"bad body, unknown endpoint", own.key, body("ep_none", "fax"), 400},
			{"unknown endpoint", own.key, body("ep_none", "webrtc"), 404},
			{"foreign endpoint", own.key, body(foreign.endpoint.ID, "webrtc"), 404},
			{"disabled endpoint", own.key, body(disabled, "webrtc"), 404},
			{"disabled endpoint, chat", own.key, body(disabled, "chat"), 404},
			{"webrtc on an endpoint without it", own.key, body(chat.ID, "webrtc"), lackingOrOff},
			{"audio on an endpoint without it", own.key, body(chat.ID, "audio"), 400},
			{"webrtc", own.key, body(own.endpoint.ID, "webrtc"), onOrOff},
			{"chat", own.key, body(own.endpoint.ID, "chat"), 201},
			{"audio", own.key, body(own.endpoint.ID, "audio"), 201},
		} {
			resp, text := post(t, i, tokenPath, c.body, "X-API-Key", c.key)
			if resp.StatusCode != c.status || c.status == 503 && !strings.Contains(text, code("WEBRTC_DISABLED")) {
				t.Errorf("FEATURE_WEBRTC=%v, %s: got %d %s, want %d", webRTC, c.name, resp.StatusCode, text, c.status)
			}
		}
	}
}

func TestIdempotencyKeyIsSharedByInstances(t *testing.T) {
	env := realStores(t)
	a, b := boot.Start(t, env), boot.Start(t, env)
	own, other := newTenant(t, a, "own"), newTenant(t, a, "other")
	first := issue(t, a, own, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1")
	again := issue(t, b, own, "  \"metadata\" : {\"b\":[2], \"a\":1}, \"mode\":\"\\u0063hat\"", "Idempotency-Key", "order-1")
	if again.SessionID != first.SessionID || again.Token != first.Token || again.ExpiresAt != first.ExpiresAt {
		t.Errorf("the same request got\n%+v, then\n%+v", first, again)
	}
	resp, body := post(t, b, tokenPath, fmt.Sprintf(`{"endpointId":%q,"mode":"chat"}`, own.endpoint.ID), "X-API-Key", own.key, "Idempotency-Key", "order-1")
	wantStatus(t, resp, body, 409, code("IDEMPOTENCY_CONFLICT"))
	if theirs := issue(t, b, other, `"mode":"chat"`, "Idempotency-Key", "order-1"); theirs.SessionID == first.SessionID {
		t.Error("a key of one team stands for a session of another")
	}

	t.Run("also when it has ended", func(t *testing.T) {
		resp, body := call(t, a, "DELETE", "/api/v1/sessions/"+first.SessionID, "X-API-Key", own.key)
		wantStatus(t, resp, body, 204, "")
		if again := issue(t, b, own, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1"); again.Token != first.Token {
			t.Error("another token")
		}
	})
	t.Run("a refused request is not remembered", func(t *testing.T) {
		resp, body := post(t, a, tokenPath, `{"endpointId":"ep_none"}`, "X-API-Key", own.key, "Idempotency-Key", "order-2")
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		issue(t, b, own, `"mode":"chat"`, "Idempotency-Key", "order-2")
	})
	t.Run("twins", func(t *testing.T) {
		var mu sync.Mutex
		tokens := map[string]bool{}
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() {
				s := issue(t, []*boot.Instance{a, b}[n%2], own, `"mode":"audio"`, "Idempotency-Key", "twins")
				mu.Lock()
				defer mu.Unlock()
				tokens[s.SessionID+s.Token] = true
			})
		}
		wg.Wait()
		if len(tokens) != 1 {
			t.Errorf("16 twins got %d sessions", len(tokens))
		}
	})
}

func TestWebRTCSessionGetsTURNCredentials(t *testing.T) {
	i := boot.Start(t, boot.Env{"WEBRTC_ICE_SERVERS": "stun:stun.example:3478,turn:turn.example?transport=udp", "TURN_SHARED_SECRET": "north"})
	own := newTenant(t, i, "own")
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
		t.Errorf("a chat has ICE servers: %+v", chat.ICEServers)
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
		{"behind a trusted proxy", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "api.example:8443"}, "wss://api.example:8443/ws/session"},
		{"behind two of them", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "https, http", "X-Forwarded-Host", "api.example, inner"}, "wss://api.example/ws/session"},
		{"a proxy that says odd things", boot.Env{"TRUSTED_PROXIES": "127.0.0.0/8,::1"}, []string{"X-Forwarded-Proto", "gopher", "X-Forwarded-Host", "a@b/c"}, ""},
		{"claimed by the client itself", nil, []string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "evil.example"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := boot.Start(t, c.env)
			want := c.want
			if want == "" {
				want = "ws" + strings.TrimPrefix(i.URL, "http") + "/ws/session"
			}
			if s := issue(t, i, newTenant(t, i, "own"), `"mode":"chat"`, c.headers...); s.WSURL != want {
				t.Errorf("wsUrl %s, want %s", s.WSURL, want)
			}
		})
	}
}

// The shortest token of all, never redeemed: the sweeper ends it.
func TestUnredeemedSessionExpires(t *testing.T) {
	i := boot.Start(t, nil)
	own := newTenant(t, i, "own")
	s := issue(t, i, own, `"ttlSeconds":10`)
	var body string
	poll.Until(t, "the session is swept", func() bool {
		time.Sleep(200 * time.Millisecond) // the rate limit is not what is tried here
		_, body = call(t, i, "GET", "/api/v1/sessions/"+s.SessionID, "X-API-Key", own.key)
		return strings.Contains(body, `"endedAt"`)
	})
	if !strings.Contains(body, `"state":"expired"`) {
		t.Errorf("swept, and says %s", body)
	}
	if other := issue(t, i, own, `"ttlSeconds":60`); stateOf(t, i, own, other.SessionID) != "issued" {
		t.Error("a session was swept before its time")
	}
}
