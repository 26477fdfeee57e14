package contract

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// stub is the response of a fake server.
type stub struct {
	status int
	header string // "Name: value" per line
	body   string
}

func (s stub) response(req *http.Request) *http.Response {
	h := http.Header{}
	for line := range strings.Lines(s.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		h.Add(name, value)
	}
	return &http.Response{StatusCode: s.status, Header: h, Body: io.NopCloser(strings.NewReader(s.body)), Request: req}
}

// without removes a header.
func (s stub) without(name string) stub {
	var kept strings.Builder
	for line := range strings.Lines(s.header) {
		if !strings.HasPrefix(line, name+":") {
			kept.WriteString(line)
		}
	}
	s.header = kept.String()
	return s
}

// replace replaces a part of the body.
func (s stub) replace(old, replacement string) stub {
	if !strings.Contains(s.body, old) {
		panic(fmt.Sprintf("%q is not in %s", old, s.body))
	}
	s.body = strings.Replace(s.body, old, replacement, 1)
	return s
}

// withHeader sets a header.
func (s stub) withHeader(name, value string) stub {
	s = s.without(name)
	s.header += name + ": " + value + "\n"
	return s
}

const (
	jsonHeader    = "Content-Type: application/json\nX-Request-Id: r-1\n"
	limitedHeader = jsonHeader + `RateLimit-Policy: "api";q=600;w=60, "team_daily_quota";q=5;w=86400` + "\n" +
		`RateLimit: "api";r=1;t=1, "team_daily_quota";r=1;t=1` + "\n"
)

func errorStub(status int, code, extra string) stub {
	return stub{status, jsonHeader, `{"error":{"code":"` + code + `","message":"No.",` + extra + `"requestId":"r-1"}}`}
}

var (
	health      = stub{200, jsonHeader, `{"status":"ok","version":"0.9.18","uptimeSeconds":1,"checks":{"database":"ok","kv":"ok","media":"disabled"}}`}
	page        = stub{200, limitedHeader, `{"data":[{"id":"ep_1","name":"E","enabled":true,"modes":["chat"],"capabilities":{"modes":["chat"],"commands":[],"commandSources":[],"speech":{}},"gatewayProfile":{"later":1}}],"nextCursor":null}`}
	report      = stub{200, limitedHeader, `{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T01:02:03.456Z","total":{"characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1},"buckets":[{"start":"2026-11-01","group":"","characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1}]}`}
	notModified = stub{304, limitedHeader + "ETag: \"x\"\nCache-Control: private, no-cache\n", ""}.without("Content-Type")
	badRequest  = errorStub(400, "VALIDATION_ERROR", `"details":[{"path":"/query/limit","code":"too_large","message":"Less."}],`)
	unknown     = errorStub(404, "NOT_FOUND", "")
	wrongMethod = errorStub(405, "METHOD_NOT_ALLOWED", "").withHeader("Allow", "GET, HEAD")
	badKey      = errorStub(401, "UNAUTHORIZED", "").withHeader("WWW-Authenticate", `Bearer realm="telapi"`)
	tooMany     = stub{429, limitedHeader + "Retry-After: 2\n", errorStub(0, "RATE_LIMIT_EXCEEDED", `"details":{"limit":"ip","tier":"api","max":600,"window":60,"resetAt":"2026-11-15T00:00:00Z"},`).body}
	unavailable = errorStub(503, "SERVICE_UNAVAILABLE", "").withHeader("Retry-After", "2")
)

const (
	endpoints = "/api/v1/endpoints"
	usage     = "/api/v1/usage/tts-characters"
)

func TestResponsesAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name, method, path string
		response           stub
		want               string // in the failure message; empty: no failure
	}{
		{"health", "GET", "/health", health, ""},
		{"draining", "GET", "/health", stub{503, jsonHeader + "Retry-After: 2\n", health.body}.replace(`"ok"`, `"draining"`), ""},
		{"metrics", "GET", "/metrics", stub{200, "Content-Type: text/plain; version=0.0.4\nX-Request-Id: r", "x 1\n"}, ""},
		{"metrics as protobuf", "GET", "/metrics", stub{200, "Content-Type: application/vnd.google.protobuf\nX-Request-Id: r", "\x00"}, ""},
		{"page", "GET", endpoints + "?limit=5", page, ""},
		{"page, HEAD", "HEAD", endpoints, stub{200, limitedHeader, ""}, ""},
		{"usage", "GET", usage, report, ""},
		{"not modified", "GET", "/api/v1/runtime/endpoints/ep_1", notModified, ""},
		{"endpoint of another team", "GET", "/api/v1/runtime/endpoints/a%2Fb", unknown, ""},
		{"bad request", "GET", endpoints, badRequest, ""},
		{"bad key", "GET", endpoints, badKey, ""},
		{"too many requests", "GET", endpoints, tooMany, ""},
		{"store unavailable", "GET", endpoints, unavailable, ""},
		{"unknown path", "GET", "/nothing", unknown, ""},
		{"unknown path, any method", "BREW", "/api/v1", unknown, ""},
		{"unclean path", "GET", "//health", unknown, ""},
		{"trailing slash", "GET", "/health/", unknown, ""},
		{"wrong method", "DELETE", "/health", wrongMethod, ""},
		{"any method if API access is disabled", "DELETE", endpoints, unknown, ""},

		{"undocumented status", "GET", "/health", stub{201, jsonHeader, health.body}, "status is not documented"},
		{"redirect", "GET", endpoints, stub{301, "Location: /x\n", ""}, "status is not documented"},
		{"status of another operation", "GET", "/health", badRequest, "status is not documented"},
		{"missing field", "GET", "/health", health.replace(`"uptimeSeconds":1,`, ""), "missing property 'uptimeSeconds'"},
		{"missing check", "GET", "/health", health.replace(`"kv":"ok",`, ""), "missing property 'kv'"},
		{"extra field", "GET", "/health", health.replace(`"status"`, `"load":3,"status"`), "additional properties 'load' not allowed"},
		{"extra field in a composed schema", "GET", usage, report.replace(`"start"`, `"end":"2026-11-01","start"`), "end"},
		{"extra field in the total", "GET", usage, report.replace(`"total":{`, `"total":{"start":"2026-11-01",`), "start"},
		{"wrong type", "GET", "/health", health.replace(`"uptimeSeconds":1`, `"uptimeSeconds":"1"`), "got string, want integer"},
		{"null for a list", "GET", endpoints, page.replace(`"commands":[]`, `"commands":null`), "got null, want array"},
		{"value not in the enum", "GET", "/health", health.replace(`"disabled"`, `"fine"`), "value must be one of"},
		{"503's body with 200", "GET", "/health", health.replace(`"ok"`, `"draining"`), "value must be 'ok'"},
		{"invalid date", "GET", usage, report.replace(`"from":"2026-11-01"`, `"from":"01.11.2026"`), "date"},
		{"duplicate field", "GET", "/health", health.replace(`"status"`, `"status":"ok","status"`), "not a single JSON value"},
		{"two values", "GET", "/health", health.replace(`{"status"`, `{}{"status"`), "not a single JSON value"},
		{"empty body", "GET", "/health", stub{200, jsonHeader, ""}, "not a single JSON value"},
		{"not UTF-8", "GET", "/health", health.replace("0.9.18", "0.9.18\xff"), "not a single JSON value"},
		{"undocumented body", "GET", "/openapi.yaml", stub{304, notModified.header, "x"}, "no body is documented"},
		{"undocumented media type", "GET", "/health", health.withHeader("Content-Type", "text/html"), "Content-Type"},
		{"no media type", "GET", "/health", health.without("Content-Type"), "Content-Type"},
		{"media type of a HEAD", "HEAD", "/health", stub{200, "X-Request-Id: r\nContent-Type: text/html", ""}, "Content-Type"},

		{"no request ID", "GET", "/health", health.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"no request ID, HEAD", "HEAD", "/health", health.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"invalid request ID", "GET", "/health", health.withHeader("X-Request-Id", "a b"), "header X-Request-Id"},
		{"no RateLimit", "GET", endpoints, page.without("RateLimit"), "header RateLimit is missing"},
		{"invalid RateLimit", "GET", endpoints, page.withHeader("RateLimit", "599"), "header RateLimit"},
		{"two lines of RateLimit", "GET", endpoints, page.withHeader("RateLimit", `"api";r=1;t=1`+"\nRateLimit: "+`"team_daily_quota";r=1;t=1`), "header RateLimit has 2 lines"},
		{"no ETag", "GET", "/openapi.yaml", notModified.without("ETag"), "header ETag is missing"},
		{"no Retry-After", "GET", endpoints, unavailable.without("Retry-After"), "header Retry-After is missing"},
		{"Retry-After is a date", "GET", endpoints, unavailable.withHeader("Retry-After", "Sun, 15 Nov 2026 00:00:00 GMT"), "is not a number"},
		{"Retry-After of zero", "GET", endpoints, tooMany.withHeader("Retry-After", "0"), "header Retry-After"},
		{"401 without a challenge", "GET", endpoints, badKey.without("WWW-Authenticate"), "header WWW-Authenticate is missing"},

		{"plain-text error", "GET", endpoints, stub{500, "Content-Type: text/plain; charset=utf-8\nX-Request-Id: r\n", "Internal Server Error\n"}, "Content-Type"},
		{"plain text labelled as JSON", "GET", endpoints, stub{500, jsonHeader, "Internal Server Error"}, "not a single JSON value"},
		{"error without envelope", "GET", endpoints, stub{500, jsonHeader, `{"code":"INTERNAL_ERROR","message":"No."}`}, "missing property 'error'"},
		{"error without request ID", "GET", endpoints, badKey.replace(`,"requestId":"r-1"`, ""), "missing property 'requestId'"},
		{"error with another request ID", "GET", endpoints, badKey.replace(`"r-1"`, `"r-2"`), "requestId is"},
		{"code of another status", "GET", endpoints, badKey.replace("UNAUTHORIZED", "FORBIDDEN"), "value must be 'UNAUTHORIZED'"},
		{"unknown code", "GET", endpoints, badKey.replace("UNAUTHORIZED", "OOPS"), "value must be one of"},
		{"401 with details", "GET", endpoints, badKey.replace(`"message"`, `"details":"expired","message"`), "details"},
		{"400 without issues", "GET", endpoints, errorStub(400, "VALIDATION_ERROR", ""), "missing property 'details'"},
		{"429 with unknown details", "GET", endpoints, tooMany.replace(`"tier":"api",`, ""), "oneOf"},

		{"unknown path served", "GET", "/nothing", stub{200, jsonHeader, "{}"}, "must be 404"},
		{"unknown path in plain text", "GET", "/nothing", stub{404, "Content-Type: text/plain\nX-Request-Id: r\n", "404 page not found\n"}, "Content-Type"},
		{"unknown path without request ID", "GET", "/nothing", unknown.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"unknown path without request ID in the body", "GET", "/nothing", unknown.replace(`,"requestId":"r-1"`, ""), "missing property 'requestId'"},
		{"wrong method served", "POST", "/health", health, "must be 405"},
		{"wrong method as 404", "POST", "/health", unknown, "must be 405"},
		{"wrong method without Allow", "POST", "/health", wrongMethod.without("Allow"), "header Allow is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var rec recorder
			req := httptest.NewRequest(tt.method, tt.path, nil)
			if body, err := get(Transport(&rec, fixed(tt.response)), req); err != nil || body != tt.response.body {
				t.Errorf("the client read %q, %v; want %q", body, err, tt.response.body)
			}
			switch failure := rec.String(); {
			case tt.want == "" && failure != "":
				t.Errorf("unexpected failure: %s", failure)
			case !strings.Contains(failure, tt.want):
				t.Errorf("failure %q does not contain %q", failure, tt.want)
			case tt.want != "" && !strings.HasPrefix(failure, fmt.Sprintf("%s %s returned %d", tt.method, req.URL.Path, tt.response.status)):
				t.Errorf("failure %q does not name the request and the status", failure)
			}
		})
	}
}

func TestAllDifferencesAreReported(t *testing.T) {
	var rec recorder
	bad := page.without("X-Request-Id").without("RateLimit").replace(`"enabled":true,`, "").replace(`"nextCursor":null`, `"nextCursor":1`)
	if _, err := get(Transport(&rec, fixed(bad)), httptest.NewRequest("GET", endpoints, nil)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"X-Request-Id", "RateLimit", "enabled", "nextCursor"} {
		if !strings.Contains(rec.String(), want) {
			t.Errorf("failure %q does not mention %s", rec.String(), want)
		}
	}
}

func TestBodyReadErrorReachesClient(t *testing.T) {
	reset := errors.New("connection reset")
	var rec recorder
	breaking := roundTripper(func(req *http.Request) (*http.Response, error) {
		res := health.response(req)
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"status":`), errorReader{reset}))
		return res, nil
	})
	body, err := get(Transport(&rec, breaking), httptest.NewRequest("GET", "/health", nil))
	if body != `{"status":` || !errors.Is(err, reset) {
		t.Errorf("read %q, %v; want the first part of the body and %v", body, err, reset)
	}
	if rec.String() != "" {
		t.Errorf("unexpected failure: %s", rec.String())
	}
}

func TestTransportErrorReachesClient(t *testing.T) {
	refused := errors.New("connection refused")
	broken := roundTripper(func(*http.Request) (*http.Response, error) { return nil, refused })
	if _, err := get(Transport(t, broken), httptest.NewRequest("GET", "/health", nil)); !errors.Is(err, refused) {
		t.Errorf("RoundTrip returned %v, want %v", err, refused)
	}
}

func TestClientChecksRealServers(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var rec recorder
	client := Client(&rec)
	const requests = 20
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			res, err := client.Get(server.URL + "/health")
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
		})
	}
	wg.Wait()
	if n := strings.Count(rec.String(), "GET /health returned 404"); n != requests {
		t.Errorf("%d failures were reported, want %d", n, requests)
	}
}

func BenchmarkCheck(b *testing.B) {
	checked := Transport(b, fixed(page))
	req := httptest.NewRequest("GET", endpoints, nil)
	for b.Loop() {
		if _, err := get(checked, req); err != nil {
			b.Fatal(err)
		}
	}
}

// get sends a request and returns the body.
func get(rt http.RoundTripper, req *http.Request) (string, error) {
	res, err := rt.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func fixed(s stub) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) { return s.response(req), nil })
}

// recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Cleanup(func()) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.failures, "\n")
}
