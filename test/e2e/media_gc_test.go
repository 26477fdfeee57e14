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
// file. It keeps everything else.
func TestMediaGCRemovesExpiredLostAndOrphanedFiles(t *testing.T) {
	t.Parallel()
	provider, media := newSpeechProvider(t), harness.StartMedia(t)
	env := harness.Merge(harness.Env{"DATA_DIR": t.TempDir()}, provider.env, media.Env)
	i, tenant := startTenant(t, env)
	kept := speak(t, i, tenant.Key, `{"text":"kept"}`)
	later := speak(t, i, tenant.Key, `{"text":"later","ttl":3600}`)
	expired := speak(t, i, tenant.Key, `{"text":"expired","ttl":1,"encoding":"pcm"}`)
	lost := speak(t, i, tenant.Key, `{"text":"lost"}`)
	file := func(s speechResponse) string {
		return filepath.Join(media.Root, s.Hash[:2], s.Hash+"."+s.Encoding)
	}
	addFile := func(path string, age time.Duration) string {
		t.Helper()
		path = filepath.Join(media.Root, path)
		when := time.Now().Add(-age)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Must(t, os.WriteFile(path, []byte("audio"), 0o600))
		testkit.Must(t, os.Chtimes(path, when, when))
		return path
	}
	orphan := "aa/" + strings.Repeat("a", 64) + ".alaw"
	old := addFile(orphan, 2*time.Hour)
	young := addFile("bb/"+strings.Repeat("b", 64)+".alaw", time.Minute)
	foreign := addFile("ab/hello.pcm", 1000*time.Hour)
	testkit.Must(t, os.Remove(file(lost)))
	made := time.Now().Add(-time.Minute) // before the row, however slow the upload was
	testkit.Must(t, os.Chtimes(file(expired), made, made))
	testkit.Until(t, "the audio expires", func() bool {
		resp, _ := i.Call(t, "GET", expired.URL, "X-API-Key", tenant.Key)
		return resp.StatusCode == 404
	})

	if err := i.Stop(); err != nil { // the command works without a server
		t.Fatal(err)
	}
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
	wantFiles(true, file(kept), file(later), file(expired), old, young, foreign)
	gc()
	wantFiles(true, file(kept), file(later), young, foreign)
	wantFiles(false, file(expired), old)
	if r := telapi(t, env, "media", "gc"); r.exit != 0 || r.stdout != "0 removed\n" {
		t.Errorf("second run: %+v, want 0 removed", r)
	}
	i = harness.Start(t, env)
	for text, cached := range map[string]bool{"kept": true, "later": true, "expired": false, "lost": false} {
		if s := speak(t, i, tenant.Key, fmt.Sprintf(`{"text":%q}`, text)); s.Cached != cached {
			t.Errorf("%q after the cleanup: %+v, want cached: %v", text, s, cached)
		}
	}
	env = harness.Env{"DATA_DIR": t.TempDir()}
	telapi(t, env, "migrate")
	telapi(t, env, "media", "gc").expect(t, 1, "TTS_MEDIA_CACHE_BASE_URL")
}
