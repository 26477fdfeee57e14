// Package contract checks the responses that tests receive against
// api/openapi.yaml: status, headers, media type and body. It checks the frames
// of the WebSockets against api/asyncapi.yaml.
//
// kin-openapi resolves references, and jsonschema validates. The response
// validation of kin-openapi compiles a schema for every response, skips HEAD
// and 304, and accepts any body where the description has none.
package contract

import (
	"net/http"
	"sync"
	"testing"

	"telapi/api"
)

// parsed caches the checker of api/openapi.yaml for all tests of a process.
var parsed = sync.OnceValues(func() (*Checker, error) { return New(api.OpenAPI) })

// Client returns an HTTP client that fails t if a response differs from
// api/openapi.yaml.
func Client(t testing.TB) *http.Client {
	t.Helper()
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: Transport(t, base)}
}

// Transport wraps base and fails t if a response differs from api/openapi.yaml.
// The body can still be read.
func Transport(t testing.TB, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	c, err := parsed()
	if err != nil {
		t.Fatalf("read api/openapi.yaml: %v", err)
	}
	return &transport{t, base, c}
}

type transport struct {
	t       testing.TB
	base    http.RoundTripper
	checker *Checker
}

// RoundTrip is safe for concurrent use while the test runs.
func (tr *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := tr.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	tr.checker.report(tr.t, req, res)
	return res, nil
}

// CheckResponse fails t if a response that was not received through Client
// differs from api/openapi.yaml. An example is a WebSocket handshake.
func CheckResponse(t testing.TB, res *http.Response) {
	t.Helper()
	c, err := parsed()
	if err != nil {
		t.Fatalf("read api/openapi.yaml: %v", err)
	}
	c.report(t, res.Request, res)
}

func (c *Checker) report(t testing.TB, req *http.Request, res *http.Response) {
	t.Helper()
	if err := c.Check(req, res); err != nil {
		t.Errorf("%s %s returned %d, which differs from api/openapi.yaml:\n%v", req.Method, req.URL.Path, res.StatusCode, err)
	}
}
