// Package contract holds every answer that a test receives against
// api/openapi.yaml: its status, its headers, its media type and its body; and
// every frame of a session's socket against api/asyncapi.yaml.
//
// The OpenAPI library resolves the file; JSON Schemas are compiled from it by
// the library below that one. Its own response check would compile a schema
// anew for every answer, skips HEAD and 304, and lets any body pass where the
// file has none.
package contract

import (
	"net/http"
	"sync"
	"testing"

	"telapi/api"
)

// parsed is the file as every test of a process shares it: read only.
var parsed = sync.OnceValues(func() (*Checker, error) { return New(api.OpenAPI) })

// Client returns an HTTP client of the service that fails t when an answer is
// not what the file promises.
func Client(t testing.TB) *http.Client {
	t.Helper()
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: Transport(t, base)}
}

// Transport wraps a transport to the service. Answers are handed on as they
// came, their bodies still to be read.
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

// RoundTrip is safe for concurrent use, as long as the test runs.
func (tr *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := tr.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	tr.checker.hold(tr.t, req, res)
	return res, nil
}

// Hold checks an answer that came another way than by Client, such as the one to
// a WebSocket's handshake.
func Hold(t testing.TB, res *http.Response) {
	t.Helper()
	c, err := parsed()
	if err != nil {
		t.Fatalf("read api/openapi.yaml: %v", err)
	}
	c.hold(t, res.Request, res)
}

func (c *Checker) hold(t testing.TB, req *http.Request, res *http.Response) {
	t.Helper()
	if err := c.Check(req, res); err != nil {
		t.Errorf("%s %s answered %d, against api/openapi.yaml:\n%v", req.Method, req.URL.Path, res.StatusCode, err)
	}
}

// CloseIdleConnections lets http.Client reach the transport below.
func (tr *transport) CloseIdleConnections() {
	if base, ok := tr.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
