package demo

import (
	"encoding/json"
	"net/http"
	"testing"

	"telapi/internal/httpapi"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// get sends a GET request with headers, names and values in turn.
func get(t *testing.T, i *harness.Instance, path, host string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL+path, nil)
	testkit.Must(t, err)
	req.Host = host
	for n := 0; n < len(headers); n += 2 {
		req.Header.Set(headers[n], headers[n+1])
	}
	resp, err := i.Client.Do(req)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestKeyIsShownOnlyToLocalPages(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{"PLAYGROUND_ENABLED": "true"}, true)
	d, err := i.App.Demo(t.Context())
	testkit.Must(t, err)
	hosts := map[string]bool{
		"": true, "localhost": true, "localhost:3001": true, "127.0.0.1:3001": true, "[::1]:3001": true,
		"attacker.example": false, "localhost.attacker.example:3001": false, "10.0.0.7:3001": false,
	}
	check := func(shown bool, host string, headers ...string) {
		t.Helper()
		var guide httpapi.PlaygroundConfig
		testkit.Must(t, json.NewDecoder(get(t, i, "/playground/config.json", host, headers...).Body).Decode(&guide))
		if (guide.APIKey == d.Key.Reveal()) != shown || !shown && guide.APIKey != "" {
			t.Errorf("host %q with headers %q gets key %q, want the key: %v", host, headers, guide.APIKey, shown)
		}
		if guide.TeamID != d.TeamID || len(guide.Endpoints) != 1 || guide.Endpoints[0].ID != d.EndpointID || len(guide.Phrases) < 9 {
			t.Errorf("host %q gets %+v, want team %s, endpoint %s and all phrases", host, guide, d.TeamID, d.EndpointID)
		}
	}
	for host, shown := range hosts {
		check(shown, host)
	}
	for _, header := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"} {
		check(false, "", header, "127.0.0.1") // a proxy may forward requests of others
	}
}
