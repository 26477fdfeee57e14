package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/boot"
)

func TestSpeechWarm(t *testing.T) {
	media := boot.StartMedia(t)
	i := boot.Start(t, boot.With(media.Env, boot.Env{"SPEECH_PROVIDERS": "tone"}))
	own := newTenant(t, i, "own")
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list, key := write("list.txt", "Good morning\n\n{\"text\":\"Guten Tag\",\"voice\":\"de\"}\n  How are you?\n"), write("key.txt", own.key+"\n")
	warm := func(args ...string) run {
		return telapi(t, boot.Env{}, append([]string{"speech", "warm", "--url", i.URL, "--voice", "flute"}, args...)...)
	}
	if out := warm(list, "--key", "@"+key); out.exit != 0 || !strings.Contains(out.stdout, "3/3") || !strings.Contains(out.stdout, "3 created, 0 cached, 0 failed") {
		t.Errorf("%+v", out)
	}
	if !speak(t, i, own.key, `{"text":"Good morning","voice":"flute"}`).Cached || !speak(t, i, own.key, `{"text":"Guten Tag","voice":"de"}`).Cached {
		t.Error("what was warmed is not cached")
	}
	if out := warm(list, "--key", own.key, "--json"); out.exit != 0 || strings.Count(out.stdout, `"cached":true`) != 3 || strings.Count(out.stdout, "\n") != 3 {
		t.Errorf("again, for programs: %+v", out)
	}
	bad := write("bad.txt", "fine\n{\"text\":\"too fast\",\"speed\":9}\n")
	if out := warm(bad, "--key", own.key); out.exit != 1 || !strings.Contains(out.stderr, "line 2: /speed") || !strings.Contains(out.stdout, "1 created, 0 cached, 1 failed") {
		t.Errorf("a sentence that is refused: %+v", out)
	}
	for what, args := range map[string][]string{
		"wrong key":    {list, "--key", "tk_x_y"},
		"no such file": {filepath.Join(dir, "none"), "--key", own.key},
		"no JSON":      {write("broken.txt", "{\n"), "--key", own.key},
		"nobody there": {list, "--key", own.key, "--url", "http://127.0.0.1:1"},
	} {
		if out := warm(args...); out.exit != 1 || strings.Count(out.stderr, "\n") != 1 || out.stdout != "" {
			t.Errorf("%s: %+v", what, out)
		}
	}
	tomorrow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"The quota is used up."}}`))
	}))
	defer tomorrow.Close()
	if out := warm(list, "--key", own.key, "--url", tomorrow.URL); out.exit != 1 || strings.Count(out.stderr, "The quota is used up.") != 3 {
		t.Errorf("when nothing is left for today: %+v", out)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("somebody else is asked, with the key %q", r.Header.Get("X-API-Key"))
	}))
	defer elsewhere.Close()
	moved := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	if out := warm(list, "--key", own.key, "--url", moved.URL); out.exit != 1 || !strings.Contains(out.stderr, "returned status 307") {
		t.Errorf("a server that sends elsewhere: %+v", out)
	}
	media.Stop()
	if out := warm(write("more.txt", "One more\n"), "--key", own.key); out.exit != 1 || !strings.Contains(out.stderr, "not cached") {
		t.Errorf("without the media service: %+v", out)
	}
}
