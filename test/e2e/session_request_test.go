package e2e

import (
	"fmt"
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
)

func TestTokenRequestValidation(t *testing.T) {
	i, tenant := startTenant(t, nil)
	long := strings.Repeat("é", 256)
	for _, members := range []string{
		`"mode":"audio"`, `"mode":"chat"`, `"mode":"webrtc"`, `"mode":null`, `"ttlSeconds":10.0`, `"ttlSeconds":3e2`, `"duplicatePolicy":"replace"`, `"duplicatePolicy":"reject"`,
		`"identity":{}`, `"identity":null`, `"identity":{"id":"` + long + `","name":"` + long + `"}`, `"identity":{"id":"a","more":1}`, `"metadata":{ "n" : 1e400 }`, `"somethingNew":[1]`,
	} {
		issue(t, i, tenant, members)
	}
	id := tenant.Endpoint.ID
	for body, paths := range map[string]string{
		`{}`:                                          "/endpointId",
		`null`:                                        "/endpointId",
		`{"endpointId":null}`:                         "/endpointId",
		`{"endpointId":7}`:                            "/endpointId",
		`{"EndpointId":"` + id + `"}`:                 "/endpointId",
		`[]`:                                          "",
		`{"endpointId":"x","mode":"fax"}`:             "/mode",
		`{"endpointId":"x","mode":["chat"]}`:          "/mode",
		`{"endpointId":"x","ttlSeconds":10.5}`:        "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":"60"}`:        "/ttlSeconds",
		`{"endpointId":"x","ttlSeconds":1e400}`:       "/ttlSeconds",
		`{"endpointId":"x","duplicatePolicy":"keep"}`: "/duplicatePolicy",
		`{"endpointId":"x","identity":"me"}`:          "/identity",
		`{"endpointId":"x","identity":{"id":1,"name":true}}`:                                                 "/identity/id /identity/name",
		`{"endpointId":"x","identity":{"id":"` + long + `é"}}`:                                               "/identity/id",
		`{"endpointId":"x","metadata":[]}`:                                                                   "/metadata",
		`{"mode":"fax","ttlSeconds":1,"maxSessionSeconds":1,"duplicatePolicy":1,"identity":[],"metadata":1}`: "/mode /ttlSeconds /maxSessionSeconds /duplicatePolicy /identity /metadata /endpointId",
	} {
		resp, text := i.Post(t, tokenPath, body, "X-API-Key", tenant.Key)
		wantStatus(t, resp, text, 400, code("VALIDATION_ERROR"))
		for path := range strings.SplitSeq(paths, " ") {
			if !strings.Contains(text, fmt.Sprintf(`"path":%q`, path)) {
				t.Errorf("%.100s: got %s, want an issue at %q", body, text, path)
			}
		}
		if n := strings.Count(text, `"path":`); n != len(strings.Split(paths, " ")) {
			t.Errorf("%.100s: %d issues in %s, want %d", body, n, text, len(strings.Split(paths, " ")))
		}
	}
}

func TestMalformedTokenRequestsAreRejected(t *testing.T) {
	i, tenant := startTenant(t, nil)
	good := fmt.Sprintf(`{"endpointId":%q}`, tenant.Endpoint.ID)
	for name, c := range map[string]struct {
		body, contentType string
		status            int
		code              string
	}{
		"empty":                    {"", "application/json", 400, "MALFORMED_JSON"},
		"duplicate member":         {`{"endpointId":"a","endpointId":"b"}`, "application/json", 400, "MALFORMED_JSON"},
		"not UTF-8":                {"{\"endpointId\":\"\xff\"}", "application/json", 400, "MALFORMED_JSON"},
		"deeply nested":            {`{"metadata":` + strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}`, "application/json", 400, "MALFORMED_JSON"},
		"byte order mark":          {"\ufeff" + good, "application/json", 201, "sessionId"},
		"64 KiB":                   {strings.Repeat(" ", 64<<10-len(good)) + good, "application/json", 201, "sessionId"},
		"64 KiB + 1 byte":          {strings.Repeat(" ", 64<<10-len(good)+1) + good, "application/json", 413, "PAYLOAD_TOO_LARGE"},
		"no content type":          {good, "", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"text/plain":               {good, "text/plain", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"other charset":            {good, "application/json; charset=latin1", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"UTF-8 in other notation":  {good, `Application/JSON; Charset="UTF-8"`, 201, "sessionId"},
		"endpoint with a NUL byte": {`{"endpointId":"\u0000"}`, "application/json", 404, "NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			expectStatus(t, c.status, c.code)(i.Post(t, tokenPath, c.body, "X-API-Key", tenant.Key, "Content-Type", c.contentType))
		})
	}
	resp, text := i.Post(t, tokenPath, good, "X-API-Key", tenant.Key, "Content-Encoding", "gzip")
	wantStatus(t, resp, text, 415, code("UNSUPPORTED_MEDIA_TYPE"))
	for _, key := range []string{strings.Repeat("k", 256), "with space", "ümlaut"} {
		resp, text = i.Post(t, tokenPath, `{"ttlSeconds":1}`, "X-API-Key", tenant.Key, "Idempotency-Key", key)
		wantStatus(t, resp, text, 400, `"path":"/header/Idempotency-Key"`)
		if !strings.Contains(text, "/ttlSeconds") || !strings.Contains(text, "/endpointId") {
			t.Errorf("got %s, want issues at /ttlSeconds and /endpointId too", text)
		}
	}
}

// Checks run in the order credential, scope, body, endpoint, mode. The first that fails decides
// the response. Package session tests those of endpoint and mode.
func TestTokenRequestCheckOrder(t *testing.T) {
	i, tenant := startTenant(t, harness.Env{"FEATURE_WEBRTC": "false"})
	_, noScope := harness.NewKey(t, i, tenant.Team.ID, auth.ReadTeamApps)
	body := func(id, mode string) string { return fmt.Sprintf(`{"endpointId":%q,"mode":%q}`, id, mode) }
	for _, c := range []struct {
		key, body string
		status    int
		want      string
	}{
		{"tk_x_x", `{`, 401, code("UNAUTHORIZED")},
		{noScope, `{`, 403, code("FORBIDDEN")},
		{tenant.Key, body("ep_none", "fax"), 400, code("VALIDATION_ERROR")},
		{tenant.Key, body("ep_none", "webrtc"), 404, code("NOT_FOUND")},
		{tenant.Key, body(tenant.Endpoint.ID, "webrtc"), 503, code("WEBRTC_DISABLED")},
		{tenant.Key, body(tenant.Endpoint.ID, "audio"), 201, `"mode":"audio"`},
	} {
		expectStatus(t, c.status, c.want)(i.Post(t, tokenPath, c.body, "X-API-Key", c.key))
	}
}
