package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// recordedInstances records the headers of forwarded requests.
type recordedInstances struct {
	Instances
	headers http.Header
}

func (i *recordedInstances) Forward(_ http.ResponseWriter, r *http.Request, _ string, _ func(error)) {
	i.headers = r.Header
}

// Otherwise a client could choose the address for which an instance limits it.
func TestForwardedHeadersOfUntrustedClientsAreReplaced(t *testing.T) {
	for peer, want := range map[string][]string{
		"127.0.0.1:5000": {"127.0.0.1", "api.example", "http"},
		"10.0.0.1:5000":  {"198.51.100.1", "public.example", "https"}, // a trusted proxy
	} {
		s, _ := newTestServer(nil)
		var instances recordedInstances
		s.deps.Instances, s.deps.TrustedProxies = &instances, proxies
		r := httptest.NewRequest("GET", "http://api.example/api/v1/endpoints", nil)
		r.RemoteAddr = peer
		r.Header = http.Header{"X-Forwarded-For": {"198.51.100.1"}, "X-Forwarded-Host": {"public.example"}, "X-Forwarded-Proto": {"https"}}
		s.ServeHTTP(httptest.NewRecorder(), r)
		for n, name := range ForwardedHeaders {
			if got := instances.headers.Values(name); len(got) != 1 || got[0] != want[n] {
				t.Errorf("from %s: %s %q, want %q", peer, name, got, want[n])
			}
		}
	}
}
