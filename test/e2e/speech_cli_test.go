package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
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

func TestUsageCommand(t *testing.T) {
	env := harness.WithDataDir(t, harness.Env{})
	i := harness.Start(t, env)
	tenant, rt := harness.NewTenant(t, i, "tenant"), harness.StartRuntime(t, i)
	now := time.Now()
	for _, r := range []wire.SpeechReport{
		{Voice: "anna", Characters: 320},
		{Voice: "anna", Characters: 320, Cached: true},
		{Voice: "z\x1b[2Jo\te", Characters: 1},
	} {
		r.TeamID, r.At = tenant.Team.ID, now.UnixMilli()
		testkit.Must(t, rt.ReportSpeech(t.Context(), r))
	}
	day := now.UTC().Format(time.DateOnly)
	testkit.Until(t, "all reports are counted", func() bool {
		var report struct{ Total struct{ Requests int } }
		getJSON(t, i, "/api/v1/usage/tts-characters?from="+day, tenant.Key, &report)
		return report.Total.Requests == 3
	})
	r := telapi(t, env, "usage", "--team", tenant.Team.ID, "--from", day, "--to", day, "--group-by", "voice")
	want := fmt.Sprintf(`Speech usage of %[1]s from %[2]s to %[2]s, by day (UTC)

                     CHARACTERS      BILLED      CACHED  REQUESTS  █ billed ░ cached
%[2]s anna             640         320         320         2  ████████████████░░░░░░░░░░░░░░░░
%[2]s z\ufffd[2Jo\ufffde           1           1           0         1  █
TOTAL                       641         321         320         3
`, tenant.Team.ID, day)
	want = strings.ReplaceAll(want, `\ufffd`, "\ufffd")
	if r.exit != 0 || r.stdout != want {
		t.Errorf("exit %d\ngot\n%s\nwant\n%s%s", r.exit, r.stdout, want, r.stderr)
	}
	if v := harness.RunJSON(t, env, "usage", "--team", tenant.Team.ID, "--from", day, "--interval", "month"); v["interval"] != "month" || !strings.HasPrefix(fmt.Sprint(v["total"]), "map[billedCharacters:321 cachedCharacters:320") {
		t.Errorf("usage --json prints %v, want interval month and the total", v)
	}
	if r := telapi(t, env, "usage", "--team", harness.NewTenant(t, i, "unused").Team.ID); r.exit != 0 || !strings.HasSuffix(r.stdout, "none\n") {
		t.Errorf("team without usage: %+v, want exit 0 and \"none\"", r)
	}
}
