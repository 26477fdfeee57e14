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

// answer is what a made-up server says.
type answer struct {
	status int
	header string // "Name: value" per line
	body   string
}

func (a answer) response(req *http.Request) *http.Response {
	h := http.Header{}
	for line := range strings.Lines(a.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		h.Add(name, value)
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: io.NopCloser(strings.NewReader(a.body)), Request: req}
}

// without takes one header out.
func (a answer) without(name string) answer {
	var kept strings.Builder
	for line := range strings.Lines(a.header) {
		if !strings.HasPrefix(line, name+":") {
			kept.WriteString(line)
		}
	}
	a.header = kept.String()
	return a
}

// with replaces part of the body.
func (a answer) with(old, replacement string) answer {
	if !strings.Contains(a.body, old) {
		panic(fmt.Sprintf("%q is not in %s", old, a.body))
	}
	a.body = strings.Replace(a.body, old, replacement, 1)
	return a
}

// saying sets a header.
func (a answer) saying(name, value string) answer {
	a = a.without(name)
	a.header += name + ": " + value + "\n"
	return a
}

const (
	jsonHeader    = "Content-Type: application/json\nX-Request-Id: r-1\n"
	limitedHeader = jsonHeader + `RateLimit-Policy: "api";q=600;w=60` + "\n" + `RateLimit: "api";r=1;t=1` + "\n" +
		`RateLimit-Policy: "team_daily_quota";q=5;w=86400` + "\n" + `RateLimit: "team_daily_quota";r=1;t=1` + "\n"
)

func refusal(status int, code, extra string) answer {
	return answer{status, jsonHeader, `{"error":{"code":"` + code + `","message":"No.",` + extra + `"requestId":"r-1"}}`}
}

var (
	health      = answer{200, jsonHeader, `{"status":"ok","version":"0.9.18","uptimeSeconds":1,"checks":{"database":"ok","kv":"ok","media":"disabled"}}`}
	page        = answer{200, limitedHeader, `{"data":[{"id":"ep_1","name":"E","enabled":true,"modes":["chat"],"capabilities":{"modes":["chat"],"commands":[],"commandSources":[],"speech":{}},"gatewayProfile":{"later":1}}],"nextCursor":null}`}
	report      = answer{200, limitedHeader, `{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T01:02:03.456Z","total":{"characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1},"buckets":[{"start":"2026-11-01","group":"","characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1}]}`}
	notModified = answer{304, limitedHeader + "ETag: \"x\"\nCache-Control: private, no-cache\n", ""}.without("Content-Type")
	badRequest  = refusal(400, "VALIDATION_ERROR", `"details":[{"path":"/query/limit","code":"too_large","message":"Less."}],`)
	unknown     = refusal(404, "NOT_FOUND", "")
	wrongMethod = refusal(405, "METHOD_NOT_ALLOWED", "").saying("Allow", "GET, HEAD")
	badKey      = refusal(401, "UNAUTHORIZED", "").saying("WWW-Authenticate", `Bearer realm="telapi"`)
	tooMany     = answer{429, limitedHeader + "Retry-After: 2\n", refusal(0, "RATE_LIMIT_EXCEEDED", `"details":{"limit":"ip","tier":"api","max":600,"window":60,"resetAt":"2026-11-15T00:00:00Z"},`).body}
	storeAway   = refusal(503, "SERVICE_UNAVAILABLE", "").saying("Retry-After", "2")
)

const (
	endpoints = "/api/v1/endpoints"
	usage     = "/api/v1/usage/tts-characters"
)

func TestAnswersAreHeldAgainstTheFile(t *testing.T) {
	for _, tt := range []struct {
		name, method, path string
		answer             answer
		want               string // in the complaint; empty: there is none
	}{
		{"health", "GET", "/health", health, ""},
		{"draining", "GET", "/health", answer{503, jsonHeader + "Retry-After: 2\n", health.body}.with(`"ok"`, `"draining"`), ""},
		{"metrics", "GET", "/metrics", answer{200, "Content-Type: text/plain; version=0.0.4\nX-Request-Id: r", "x 1\n"}, ""},
		{"metrics as protobuf", "GET", "/metrics", answer{200, "Content-Type: application/vnd.google.protobuf\nX-Request-Id: r", "\x00"}, ""},
		{"page", "GET", endpoints + "?limit=5", page, ""},
		{"page, asked for its header", "HEAD", endpoints, answer{200, limitedHeader, ""}, ""},
		{"usage", "GET", usage, report, ""},
		{"not modified", "GET", "/api/v1/runtime/endpoints/ep_1", notModified, ""},
		{"foreign endpoint", "GET", "/api/v1/runtime/endpoints/a%2Fb", unknown, ""},
		{"bad request", "GET", endpoints, badRequest, ""},
		{"bad key", "GET", endpoints, badKey, ""},
		{"too many requests", "GET", endpoints, tooMany, ""},
		{"store away", "GET", endpoints, storeAway, ""},
		{"unknown path", "GET", "/nothing", unknown, ""},
		{"unknown path, any method", "BREW", "/api/v1", unknown, ""},
		{"known path spelt otherwise", "GET", "//health", unknown, ""},
		{"slash at the end", "GET", "/health/", unknown, ""},
		{"wrong method", "DELETE", "/health", wrongMethod, ""},
		{"any method where API access is off", "DELETE", endpoints, unknown, ""},

		{"undocumented status", "GET", "/health", answer{201, jsonHeader, health.body}, "status is not documented"},
		{"redirect", "GET", endpoints, answer{301, "Location: /x\n", ""}, "status is not documented"},
		{"status of another operation", "GET", "/health", badRequest, "status is not documented"},
		{"missing field", "GET", "/health", health.with(`"uptimeSeconds":1,`, ""), "missing property 'uptimeSeconds'"},
		{"missing check", "GET", "/health", health.with(`"kv":"ok",`, ""), "missing property 'kv'"},
		{"extra field", "GET", "/health", health.with(`"status"`, `"load":3,"status"`), "additional properties 'load' not allowed"},
		{"extra field where schemas are composed", "GET", usage, report.with(`"start"`, `"end":"2026-11-01","start"`), "end"},
		{"extra field in the total", "GET", usage, report.with(`"total":{`, `"total":{"start":"2026-11-01",`), "start"},
		{"wrong type", "GET", "/health", health.with(`"uptimeSeconds":1`, `"uptimeSeconds":"1"`), "got string, want integer"},
		{"null for a list", "GET", endpoints, page.with(`"commands":[]`, `"commands":null`), "got null, want array"},
		{"value out of its list", "GET", "/health", health.with(`"disabled"`, `"fine"`), "value must be one of"},
		{"503's body with 200", "GET", "/health", health.with(`"ok"`, `"draining"`), "value must be 'ok'"},
		{"date that is none", "GET", usage, report.with(`"from":"2026-11-01"`, `"from":"01.11.2026"`), "date"},
		{"field twice", "GET", "/health", health.with(`"status"`, `"status":"ok","status"`), "not one JSON value"},
		{"two values", "GET", "/health", health.with(`{"status"`, `{}{"status"`), "not one JSON value"},
		{"empty body", "GET", "/health", answer{200, jsonHeader, ""}, "not one JSON value"},
		{"not UTF-8", "GET", "/health", health.with("0.9.18", "0.9.18\xff"), "not one JSON value"},
		{"body where there is none", "GET", "/openapi.yaml", answer{304, notModified.header, "x"}, "documents no body"},
		{"another media type", "GET", "/health", health.saying("Content-Type", "text/html"), "Content-Type"},
		{"no media type", "GET", "/health", health.without("Content-Type"), "Content-Type"},
		{"media type of a HEAD", "HEAD", "/health", answer{200, "X-Request-Id: r\nContent-Type: text/html", ""}, "Content-Type"},

		{"no request id", "GET", "/health", health.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"no request id, asked for its header", "HEAD", "/health", health.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"odd request id", "GET", "/health", health.saying("X-Request-Id", "a b"), "header X-Request-Id"},
		{"limit not told", "GET", endpoints, page.without("RateLimit"), "header RateLimit is missing"},
		{"limit in another form", "GET", endpoints, page.saying("RateLimit", "599"), "header RateLimit"},
		{"no ETag", "GET", "/openapi.yaml", notModified.without("ETag"), "header ETag is missing"},
		{"no Retry-After", "GET", endpoints, storeAway.without("Retry-After"), "header Retry-After is missing"},
		{"Retry-After is a date", "GET", endpoints, storeAway.saying("Retry-After", "Sun, 15 Nov 2026 00:00:00 GMT"), "is no number"},
		{"Retry-After at once", "GET", endpoints, tooMany.saying("Retry-After", "0"), "header Retry-After"},
		{"401 without a challenge", "GET", endpoints, badKey.without("WWW-Authenticate"), "header WWW-Authenticate is missing"},

		{"plain-text error", "GET", endpoints, answer{500, "Content-Type: text/plain; charset=utf-8\nX-Request-Id: r\n", "Internal Server Error\n"}, "Content-Type"},
		{"plain text that says it is JSON", "GET", endpoints, answer{500, jsonHeader, "Internal Server Error"}, "not one JSON value"},
		{"error without its envelope", "GET", endpoints, answer{500, jsonHeader, `{"code":"INTERNAL_ERROR","message":"No."}`}, "missing property 'error'"},
		{"error without a request id", "GET", endpoints, badKey.with(`,"requestId":"r-1"`, ""), "missing property 'requestId'"},
		{"error with another request id", "GET", endpoints, badKey.with(`"r-1"`, `"r-2"`), "requestId is"},
		{"code of another status", "GET", endpoints, badKey.with("UNAUTHORIZED", "FORBIDDEN"), "value must be 'UNAUTHORIZED'"},
		{"code nobody knows", "GET", endpoints, badKey.with("UNAUTHORIZED", "OOPS"), "value must be one of"},
		{"401 that explains itself", "GET", endpoints, badKey.with(`"message"`, `"details":"expired","message"`), "details"},
		{"400 without issues", "GET", endpoints, refusal(400, "VALIDATION_ERROR", ""), "missing property 'details'"},
		{"429 of neither kind", "GET", endpoints, tooMany.with(`"tier":"api",`, ""), "oneOf"},

		{"unknown path served", "GET", "/nothing", answer{200, jsonHeader, "{}"}, "has to be 404"},
		{"unknown path in plain text", "GET", "/nothing", answer{404, "Content-Type: text/plain\nX-Request-Id: r\n", "404 page not found\n"}, "Content-Type"},
		{"unknown path without a request id", "GET", "/nothing", unknown.without("X-Request-Id"), "header X-Request-Id is missing"},
		{"unknown path without one in the body", "GET", "/nothing", unknown.with(`,"requestId":"r-1"`, ""), "missing property 'requestId'"},
		{"wrong method served", "POST", "/health", health, "has to be 405"},
		{"wrong method as 404", "POST", "/health", unknown, "has to be 405"},
		{"wrong method without Allow", "POST", "/health", wrongMethod.without("Allow"), "header Allow is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var heard listener
			req := httptest.NewRequest(tt.method, tt.path, nil)
			if body, err := ask(Transport(&heard, fixed(tt.answer)), req); err != nil || body != tt.answer.body {
				t.Errorf("the caller reads %q, %v; want %q", body, err, tt.answer.body)
			}
			switch complaint := heard.String(); {
			case tt.want == "" && complaint != "":
				t.Errorf("complained: %s", complaint)
			case !strings.Contains(complaint, tt.want):
				t.Errorf("complained %q, want %q in it", complaint, tt.want)
			case tt.want != "" && !strings.HasPrefix(complaint, fmt.Sprintf("%s %s answered %d", tt.method, req.URL.Path, tt.answer.status)):
				t.Errorf("%q does not say what was asked and answered", complaint)
			}
		})
	}
}

func TestAllComplaintsComeAtOnce(t *testing.T) {
	var heard listener
	bad := page.without("X-Request-Id").without("RateLimit").with(`"enabled":true,`, "").with(`"nextCursor":null`, `"nextCursor":1`)
	if _, err := ask(Transport(&heard, fixed(bad)), httptest.NewRequest("GET", endpoints, nil)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"X-Request-Id", "RateLimit", "enabled", "nextCursor"} {
		if !strings.Contains(heard.String(), want) {
			t.Errorf("%q does not mention %s", heard.String(), want)
		}
	}
}

func TestBodyCutOffIsLeftToItsReader(t *testing.T) {
	cut := errors.New("connection reset")
	var heard listener
	breaking := roundTripper(func(req *http.Request) (*http.Response, error) {
		res := health.response(req)
		res.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"status":`), failing{cut}))
		return res, nil
	})
	body, err := ask(Transport(&heard, breaking), httptest.NewRequest("GET", "/health", nil))
	if body != `{"status":` || !errors.Is(err, cut) {
		t.Errorf("read %q, %v", body, err)
	}
	if heard.String() != "" {
		t.Errorf("complained: %s", heard.String())
	}
}

func TestFailedRequestIsHandedOn(t *testing.T) {
	refused := errors.New("connection refused")
	away := roundTripper(func(*http.Request) (*http.Response, error) { return nil, refused })
	if _, err := ask(Transport(t, away), httptest.NewRequest("GET", "/health", nil)); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

func TestClientChecksRealServers(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var heard listener
	client := Client(&heard)
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			res, err := client.Get(server.URL + "/health")
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
		})
	}
	asking.Wait()
	if n := strings.Count(heard.String(), "GET /health answered 404"); n != 20 {
		t.Errorf("%d complaints about 20 answers", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	checked := Transport(b, fixed(page))
	req := httptest.NewRequest("GET", endpoints, nil)
	for b.Loop() {
		if _, err := ask(checked, req); err != nil {
			b.Fatal(err)
		}
	}
}

// ask reads an answer as a caller would.
func ask(rt http.RoundTripper, req *http.Request) (string, error) {
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

func fixed(a answer) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) { return a.response(req), nil })
}

// listener is a test that notes its failures instead of failing.
type listener struct {
	testing.TB
	mu    sync.Mutex
	heard []string
}

func (l *listener) Helper() {}

func (l *listener) Cleanup(func()) {}

func (l *listener) Errorf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = append(l.heard, fmt.Sprintf(format, args...))
}

func (l *listener) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (l *listener) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.heard, "\n")
}
