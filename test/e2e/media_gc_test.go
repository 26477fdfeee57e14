package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// telapi media gc removes expired files, files without a row and rows without a
// file. TestCleanupRemovesOnlyUnusedItems has what it keeps.
func TestMediaGCRemovesExpiredLostAndOrphanedFiles(t *testing.T) {
	t.Parallel()
	provider, media := newSpeechProvider(t), harness.StartMedia(t)
	env := harness.Merge(harness.Env{"DATA_DIR": t.TempDir()}, provider.env, media.Env)
	i, tenant := startTenant(t, env)
	kept := speak(t, i, tenant.Key, `{"text":"kept"}`)
	expired := speak(t, i, tenant.Key, `{"text":"expired","ttl":1,"encoding":"pcm"}`)
	lost := speak(t, i, tenant.Key, `{"text":"lost"}`)
	file := func(s speechResponse) string {
		return filepath.Join(media.Root, s.Hash[:2], s.Hash+"."+s.Encoding)
	}
	orphan, made := "aa/"+strings.Repeat("a", 64)+".alaw", time.Now().Add(-2*time.Hour)
	old := filepath.Join(media.Root, orphan)
	testkit.Must(t, os.MkdirAll(filepath.Dir(old), 0o700), os.WriteFile(old, []byte("audio"), 0o600), os.Chtimes(old, made, made))
	testkit.Must(t, os.Remove(file(lost)))
	testkit.Must(t, os.Chtimes(file(expired), made, made)) // before the row, however slow the upload was
	testkit.Until(t, "the audio expires", func() bool {
		resp, _ := i.Call(t, "GET", expired.URL, "X-API-Key", tenant.Key)
		return resp.StatusCode == 404
	})

	testkit.Must(t, i.Stop()) // the command works without a server
	want := []string{`"reason":"expired","path":"` + expired.Hash[:2] + "/" + expired.Hash + `.pcm"`,
		`"reason":"lost","path":"` + lost.Hash[:2] + "/" + lost.Hash + `.alaw"`, `"reason":"orphan","path":"` + orphan + `","bytes":5`}
	gc := func(args ...string) {
		t.Helper()
		r := telapi(t, env, append([]string{"media", "gc", "--json"}, args...)...)
		if r.exit != 0 || strings.Count(r.stdout, "\n") != len(want) || !containsAll(r.stdout, want...) {
			t.Fatalf("gc %v: exit %d\n%s%s\nwant %v", args, r.exit, r.stdout, r.stderr, want)
		}
	}
	wantFiles := func(exist bool, paths ...string) {
		t.Helper()
		for _, path := range paths {
			if _, err := os.Stat(path); (err == nil) != exist {
				t.Errorf("%s: exists %v, want %v", path, err == nil, exist)
			}
		}
	}
	gc("--dry-run")
	media.Stop()
	for _, args := range [][]string{{"media", "gc"}, {"media", "gc", "--dry-run"}} {
		if r := telapi(t, env, args...); r.exit != 1 || !strings.Contains(r.stderr, "media service unavailable") || r.stdout != "" {
			t.Errorf("%v without the media service: %+v, want exit 1 and the reason in stderr", args, r)
		}
	}
	media.Start(t)
	gc("--dry-run") // nothing has been removed
	wantFiles(true, file(kept), file(expired), old)
	gc()
	wantFiles(true, file(kept))
	wantFiles(false, file(expired), old)
	if r := telapi(t, env, "media", "gc"); r.exit != 0 || r.stdout != "0 removed\n" {
		t.Errorf("second run: %+v, want 0 removed", r)
	}
	i = harness.Start(t, env)
	for text, cached := range map[string]bool{"kept": true, "expired": false, "lost": false} {
		if s := speak(t, i, tenant.Key, fmt.Sprintf(`{"text":%q}`, text)); s.Cached != cached {
			t.Errorf("%q after the cleanup: %+v, want cached: %v", text, s, cached)
		}
	}
	env = harness.Env{"DATA_DIR": t.TempDir()}
	telapi(t, env, "migrate")
	telapi(t, env, "media", "gc").expect(t, 1, "TTS_MEDIA_CACHE_BASE_URL")
}
