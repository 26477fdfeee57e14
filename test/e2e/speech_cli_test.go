package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"telapi/test/harness"
)

func TestSpeechWarm(t *testing.T) {
	media := harness.StartMedia(t)
	i, tenant := startTenant(t, harness.Merge(media.Env, harness.Env{"SPEECH_PROVIDERS": "tone"}))
	list, key := writeFile(t, "list.txt", "Good morning\n\n{\"text\":\"Guten Tag\",\"voice\":\"de\"}\n  How are you?\n"), writeFile(t, "key.txt", tenant.Key+"\n")
	warm := func(args ...string) result {
		return telapi(t, harness.Env{}, append([]string{"speech", "warm", "--url", i.URL, "--voice", "flute"}, args...)...)
	}
	const unchecked = "--voice \"flute\" is not checked: the provider tone does not list its voices"
	if out := warm(list, "--key", "@"+key); out.exit != 0 || !strings.Contains(out.stderr, unchecked) || !strings.Contains(out.stdout, "3/3") || !strings.Contains(out.stdout, "3 created, 0 cached, 0 failed") {
		t.Errorf("first run: %+v, want exit 0, a warning and 3 created", out)
	}
	if !speak(t, i, tenant.Key, `{"text":"Good morning","voice":"flute"}`).Cached || !speak(t, i, tenant.Key, `{"text":"Guten Tag","voice":"de"}`).Cached {
		t.Error("warmed speech is not cached")
	}
	if out := warm(list, "--key", tenant.Key, "--json"); out.exit != 0 || strings.Count(out.stdout, `"cached":true`) != 3 || strings.Count(out.stdout, "\n") != 3 {
		t.Errorf("second run with --json: %+v, want exit 0 and 3 cached", out)
	}
	_, speaker := harness.NewKey(t, i, tenant.Team.ID, "CREATE_SPEECH")
	if out := warm(list, "--key", speaker); out.exit != 0 || !strings.Contains(out.stderr, "is not checked: This operation requires the scope READ_TEAM_APPS") {
		t.Errorf("without READ_TEAM_APPS: %+v, want exit 0 and a warning", out)
	}
	exhausted := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"The quota is used up."}}`))
	}))
	defer exhausted.Close()
	if out := warm(list, "--key", tenant.Key, "--url", exhausted.URL); out.exit != 1 || strings.Count(out.stderr, "The quota is used up.") != 4 {
		t.Errorf("exhausted quota: %+v, want exit 1, a warning and 3 errors", out)
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect is followed with the key %q", r.Header.Get("X-API-Key"))
	}))
	defer other.Close()
	redirect := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	if out := warm(list, "--key", tenant.Key, "--url", redirect.URL); out.exit != 1 || !strings.Contains(out.stderr, "returned status 307") {
		t.Errorf("redirect: %+v, want exit 1 and status 307", out)
	}
	media.Stop()
	if out := warm(writeFile(t, "more.txt", "One more\n"), "--key", tenant.Key); out.exit != 1 || !strings.Contains(out.stderr, "not cached") {
		t.Errorf("without the media service: %+v, want exit 1 and \"not cached\"", out)
	}
}

func TestSpeechProvidersAreListed(t *testing.T) {
	i, tenant := startTenant(t, harness.Env{"SPEECH_PROVIDERS": "tone"})
	_, reader := harness.NewKey(t, i, tenant.Team.ID, "READ_TEAM_APPS")
	expectStatus(t, 200, `{"providers":[{"name":"tone"}]}`)(i.Call(t, "GET", "/api/v1/runtime/voices", "X-API-Key", reader))
	unconfigured := harness.Start(t, nil)
	expectStatus(t, 503, "SPEECH_PROVIDERS")(requestSpeech(t, unconfigured, harness.NewTenant(t, unconfigured, "unconfigured").Key, `{"text":"abc"}`))
	_, speaker := harness.NewKey(t, i, tenant.Team.ID, "CREATE_SPEECH")
	expectStatus(t, 403, `"requiredScope":"READ_TEAM_APPS"`)(i.Call(t, "GET", "/api/v1/runtime/voices", "X-API-Key", speaker))
}
