package demo

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"telapi/internal/demo"
	"telapi/internal/httpapi"
	"telapi/test/harness"
)

// get sends a GET request. An empty host or key is not sent.
func get(t *testing.T, i *harness.Instance, path, host, key string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	resp, err := i.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestKeyIsShownOnlyToLocalPages(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{"PLAYGROUND_ENABLED": "true"}, true)
	d, err := i.App.Demo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for host, shown := range map[string]bool{
		"": true, "localhost": true, "localhost:3001": true, "127.0.0.1:3001": true, "[::1]:3001": true,
		"attacker.example": false, "localhost.attacker.example:3001": false, "10.0.0.7:3001": false,
	} {
		var guide httpapi.PlaygroundConfig
		if err := json.NewDecoder(get(t, i, "/playground/config.json", host, "").Body).Decode(&guide); err != nil {
			t.Fatal(err)
		}
		if (guide.APIKey == d.Key.Reveal()) != shown || !shown && guide.APIKey != "" {
			t.Errorf("host %q gets key %q, want the key: %v", host, guide.APIKey, shown)
		}
		if guide.TeamID != d.TeamID || len(guide.Endpoints) != 1 || guide.Endpoints[0].ID != d.EndpointID || len(guide.Phrases) < 9 {
			t.Errorf("host %q gets %+v, want team %s, endpoint %s and all phrases", host, guide, d.TeamID, d.EndpointID)
		}
	}
}

// The page says that speech is a placeholder if tone is the only provider.
func TestPlaygroundConfigListsSpeechProviders(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{"PLAYGROUND_ENABLED": "true", "SPEECH_PROVIDERS": "tone"}, true)
	if _, err := i.App.Demo(t.Context()); err != nil {
		t.Fatal(err)
	}
	var guide httpapi.PlaygroundConfig
	if err := json.NewDecoder(get(t, i, "/playground/config.json", "", "").Body).Decode(&guide); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(guide.SpeechProviders, []string{"tone"}) {
		t.Errorf("got speech providers %v, want tone", guide.SpeechProviders)
	}
}

func TestKeyIsNotShownThroughProxy(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{"PLAYGROUND_ENABLED": "true"}, true)
	if _, err := i.App.Demo(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL+"/playground/config.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, "127.0.0.1")
		resp, err := i.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var guide httpapi.PlaygroundConfig
		if err := errors.Join(json.NewDecoder(resp.Body).Decode(&guide), resp.Body.Close()); err != nil || guide.APIKey != "" || len(guide.Endpoints) != 1 {
			t.Errorf("with %s the page gets %+v (%v), want the endpoint without the key", header, guide, err)
		}
	}
}

// The feed merges events of the demo and of the channel and contains no token.
func TestFeedShowsEveryLane(t *testing.T) {
	t.Parallel()
	i := harness.StartDev(t, harness.Env{"PLAYGROUND_ENABLED": "true"}, true)
	d, err := i.App.Demo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := connect(t, i, "chat")
	b.Chat("transfer me abroad")
	readUntil(b, "chat", "denied")
	b.Chat("hang up")
	b.CloseCode()
	want := map[string]bool{
		"session service>runtime browser connected":                              false,
		"frame browser>runtime chat: transfer me abroad":                         false,
		"http runtime>bot request to bot, part 1":                                false,
		"http bot>runtime 202 Accepted":                                          false,
		"callback bot>service answer from bot, part 1":                           false,
		"callback service>bot 202 accepted, transfer denied":                     false,
		"denied service>runtime transfer denied: target_not_allowed":             false,
		"frame runtime>browser chat: A transfer was denied: target_not_allowed.": false,
		"command service>runtime command hangup, after_playback":                 false,
		"timer runtime> timer: disconnect":                                       false,
		"session service>runtime ended: hangup":                                  false,
	}
	lines := bufio.NewScanner(get(t, i, "/playground/feed?sessionId="+b.Session, "", d.Key.Reveal()).Body)
	lines.Buffer(nil, 1<<20)
	var last int64
	for lines.Scan() {
		var e demo.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(lines.Text(), "cbt_") || strings.Contains(lines.Text(), d.Key.Reveal()) {
			t.Errorf("event contains a credential: %s", lines.Text())
		}
		if e.At < last {
			t.Errorf("event is earlier than the one before it: %s", lines.Text())
		}
		last = e.At
		delete(want, string(e.Kind)+" "+string(e.Lane)+">"+string(e.To)+" "+e.Title)
	}
	for title := range want {
		t.Errorf("missing event: %s", title)
	}
	if strings.Contains(i.Log.String(), "cbt_") {
		t.Error("the log contains a callback token")
	}
}
