package harness

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// Response is an HTTP response without its body, which has been read and
// closed.
type Response struct {
	StatusCode int
	Header     http.Header
	Request    *http.Request
}

// Call sends a request without a body and returns the response and its body.
// headers are names and values in turn.
func (i *Instance) Call(t testing.TB, method, path string, headers ...string) (Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, i.URL+path, nil)
	testkit.Must(t, err)
	for h := 0; h+1 < len(headers); h += 2 {
		req.Header.Add(headers[h], headers[h+1])
	}
	return i.do(t, req)
}

// Post sends a body as JSON and returns the response and its body. headers are
// names and values in turn; they replace Content-Type, and an empty value
// removes a header.
func (i *Instance) Post(t testing.TB, path, body string, headers ...string) (Response, string) {
	t.Helper()
	return i.Send(t, http.MethodPost, path, body, headers...)
}

// Send is Post with any method.
func (i *Instance) Send(t testing.TB, method, path, body string, headers ...string) (Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, i.URL+path, strings.NewReader(body))
	testkit.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	for h := 0; h+1 < len(headers); h += 2 {
		req.Header.Del(headers[h])
		if headers[h+1] != "" {
			req.Header.Set(headers[h], headers[h+1])
		}
	}
	return i.do(t, req)
}

func (i *Instance) do(t testing.TB, req *http.Request) (Response, string) {
	t.Helper()
	resp, err := i.Client.Do(req)
	testkit.Must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return Response{resp.StatusCode, resp.Header, resp.Request}, string(body)
}
