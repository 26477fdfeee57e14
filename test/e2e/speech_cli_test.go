package e2e

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/boot"
)

func TestSpeechWarm(t *testing.T) {
	media := boot.StartMedia(t)
	i := boot.Start(t, boot.Merge(media.Env, boot.Env{"SPEECH_PROVIDERS": "tone"}))
	own := boot.NewTenant(t, i, "own")
	list, key := writeFile(t, "list.txt", "Good morning\n\n{\"text\":\"Guten Tag\",\"voice\":\"de\"}\n  How are you?\n"), writeFile(t, "key.txt", own.Key+"\n")
	warm := func(args ...string) result {
		return telapi(t, boot.Env{}, append([]string{"speech", "warm", "--url", i.URL, "--voice", "flute"}, args...)...)
	}
	if out := warm(list, "--key", "@"+key); out.exit != 0 || !strings.Contains(out.stdout, "3/3") || !strings.Contains(out.stdout, "3 created, 0 cached, 0 failed") {
		t.Errorf("first run: %+v", out)
	}
	if !speak(t, i, own.Key, `{"text":"Good morning","voice":"flute"}`).Cached || !speak(t, i, own.Key, `{"text":"Guten Tag","voice":"de"}`).Cached {
		t.Error("warmed speech is not cached")
	}
	if out := warm(list, "--key", own.Key, "--json"); out.exit != 0 || strings.Count(out.stdout, `"cached":true`) != 3 || strings.Count(out.stdout, "\n") != 3 {
		t.Errorf("second run with --json: %+v", out)
	}
	bad := writeFile(t, "bad.txt", "fine\n{\"text\":\"too fast\",\"speed\":9}\n")
	if out := warm(bad, "--key", own.Key); out.exit != 1 || !strings.Contains(out.stderr, "line 2: /speed") || !strings.Contains(out.stdout, "1 created, 0 cached, 1 failed") {
		t.Errorf("invalid line: %+v", out)
	}
	for what, args := range map[string][]string{
		"wrong key":          {list, "--key", "tk_x_y"},
		"missing file":       {filepath.Join(t.TempDir(), "none"), "--key", own.Key},
		"malformed JSON":     {writeFile(t, "broken.txt", "{\n"), "--key", own.Key},
		"unreachable server": {list, "--key", own.Key, "--url", "http://127.0.0.1:1"},
	} {
		if out := warm(args...); out.exit != 1 || strings.Count(out.stderr, "\n") != 1 || out.stdout != "" {
			t.Errorf("%s: %+v", what, out)
		}
	}
	exhausted := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"The quota is used up."}}`))
	}))
	defer exhausted.Close()
	if out := warm(list, "--key", own.Key, "--url", exhausted.URL); out.exit != 1 || strings.Count(out.stderr, "The quota is used up.") != 3 {
		t.Errorf("exhausted quota: %+v", out)
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect is followed with the key %q", r.Header.Get("X-API-Key"))
	}))
	defer other.Close()
	redirect := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	if out := warm(list, "--key", own.Key, "--url", redirect.URL); out.exit != 1 || !strings.Contains(out.stderr, "returned status 307") {
		t.Errorf("redirect: %+v", out)
	}
	media.Stop()
	if out := warm(writeFile(t, "more.txt", "One more\n"), "--key", own.Key); out.exit != 1 || !strings.Contains(out.stderr, "not cached") {
		t.Errorf("without the media service: %+v", out)
	}
}
