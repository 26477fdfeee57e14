package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
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

// The offer of a WebRTC session has ICE servers with credentials of its own.
func TestOfferContainsICEServers(t *testing.T) {
	t.Parallel()
	env := harness.WithDataDir(t, harness.Env{"WEBRTC_ICE_SERVERS": "turn:turn.example", "TURN_SHARED_SECRET": "north"})
	i := harness.StartDev(t, env, false)
	runtime := harness.StartRuntime(t, i)
	for mode, want := range map[string]int{"webrtc": 1, "audio": 0} {
		d, err := i.App.Demo(t.Context())
		testkit.Must(t, err)
		resp, body := i.Post(t, "/api/v1/sessions/token", fmt.Sprintf(`{"endpointId":%q,"mode":%q}`, d.EndpointID, mode), "X-API-Key", d.Key.Reveal())
		var issued struct {
			SessionID, Token string
			ICEServers       []struct{ Username, Credential string }
		}
		if err := json.Unmarshal([]byte(body), &issued); err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		harness.Connect(t, i, issued.SessionID, issued.Token, "").Expect("ready")
		offer := harness.Accept(t, runtime).Session
		if offer == nil || len(offer.ICEServers) != want {
			t.Fatalf("mode %s: offer %+v, want %d ICE servers", mode, offer, want)
		}
		if want > 0 && (offer.ICEServers[0].Username == issued.ICEServers[0].Username || offer.ICEServers[0].Credential == "" ||
			!strings.HasSuffix(offer.ICEServers[0].Username, issued.SessionID+":runtime")) {
			t.Errorf("ICE servers of the runtime are %+v, want another user than the browser's %+v", offer.ICEServers, issued.ICEServers)
		}
	}
}
