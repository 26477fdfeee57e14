package contract

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// health is a valid response to GET /health, and endpoints one of a limited route.
const (
	health    = `{"status":"ok","version":"0.9.20","uptimeSeconds":1,"checks":{"database":"ok","kv":"ok","media":"disabled"}}`
	endpoints = "/api/v1/endpoints"
)

func errorBody(code string) string {
	return `{"error":{"code":"` + code + `","message":"No.","requestId":"r-1"}}`
}

// check returns the failure of a test that gets a response. Headers are lines "Name: value";
// those of JSON and the request ID are set unless a line replaces them.
func check(method, path string, status int, headers, body string) string {
	h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r-1"}}
	for line := range strings.Lines(headers) {
		name, value, _ := strings.Cut(line, ":")
		if h.Set(name, strings.TrimSpace(value)); h.Get(name) == "" {
			h.Del(name)
		}
	}
	var rec recorder
	request := httptest.NewRequest(method, path, nil)
	CheckResponse(&rec, &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: request})
	return rec.failures
}

// jsonschema checks values; this checks that the right schema is used, and what OpenAPI
// adds: statuses, headers, media types and unlisted paths.
func TestResponsesAreChecked(t *testing.T) {
	const challenge = "WWW-Authenticate: Bearer realm=\"telapi\"\n"
	for _, tt := range []struct {
		name, method, path string
		status             int
		headers, body      string
		want               string // in the failure message; empty: no failure
	}{
		{"health", "GET", "/health", 200, "", health, ""},
		{"page of the playground", "GET", "/playground/", 201, "", "", ""},
		{"HEAD", "HEAD", "/health", 200, "", "", ""},
		{"other media type", "GET", "/metrics", 200, "Content-Type: text/plain; version=0.0.4\n", "x 1\n", ""},
		{"error", "GET", endpoints, 401, challenge, errorBody("UNAUTHORIZED"), ""},
		{"unknown path", "BREW", "/api/v1", 404, "", errorBody("NOT_FOUND"), ""},
		{"unclean path", "GET", "//health", 404, "", errorBody("NOT_FOUND"), ""},
		{"wrong method", "DELETE", "/health", 405, "Allow: GET, HEAD\n", errorBody("METHOD_NOT_ALLOWED"), ""},
		{"any method if API access is disabled", "DELETE", endpoints, 404, "", errorBody("NOT_FOUND"), ""},

		{"undocumented status", "GET", "/health", 201, "", health, "status is not documented"},
		{"missing field", "GET", "/health", 200, "", strings.Replace(health, `"kv":"ok",`, "", 1), "missing property 'kv'"},
		{"extra field", "GET", "/health", 200, "", `{"load":3,` + health[1:], "additional properties 'load' not allowed"},
		{"503's body with 200", "GET", "/health", 200, "", strings.Replace(health, `"ok"`, `"draining"`, 1), "value must be 'ok'"},
		{"duplicate field", "GET", "/health", 200, "", `{"status":"ok",` + health[1:], "not a single JSON value"},
		{"undocumented body", "GET", "/openapi.yaml", 304, "ETag: \"x\"\nCache-Control: no-cache\n", "x", "no body is documented"},
		{"undocumented media type", "GET", "/health", 200, "Content-Type: text/html\n", health, "Content-Type"},
		{"no request ID", "GET", "/health", 200, "X-Request-Id:\n", health, "header X-Request-Id is missing"},
		{"invalid request ID", "GET", "/health", 200, "X-Request-Id: a b\n", health, "header X-Request-Id"},
		{"number that is a date", "GET", endpoints, 503, "Retry-After: Sunday\n", errorBody("SERVICE_UNAVAILABLE"), "is not a number"},
		{"401 without a challenge", "GET", endpoints, 401, "", errorBody("UNAUTHORIZED"), "header WWW-Authenticate is missing"},
		{"error with another request ID", "GET", endpoints, 401, challenge + "X-Request-Id: r-2\n", errorBody("UNAUTHORIZED"), "requestId is"},
		{"code of another status", "GET", endpoints, 401, challenge, errorBody("FORBIDDEN"), "value must be 'UNAUTHORIZED'"},
		{"unknown path served", "GET", "/nothing", 200, "", "{}", "must be 404"},
		{"wrong method as 404", "POST", "/health", 404, "", errorBody("NOT_FOUND"), "must be 405"},
		{"wrong method without Allow", "POST", "/health", 405, "", errorBody("METHOD_NOT_ALLOWED"), "header Allow is missing"},
	} {
		failure := check(tt.method, tt.path, tt.status, tt.headers, tt.body)
		if (tt.want == "") != (failure == "") || !strings.Contains(failure, tt.want) {
			t.Errorf("%s: failure is %q, want %q in it", tt.name, failure, tt.want)
		}
	}
}

// recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	failures string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures += fmt.Sprintf(format, args...) + "\n"
}
