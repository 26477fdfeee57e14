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
// file, with and without a running server. It keeps everything else.
func TestMediaGCRemovesExpiredLostAndOrphanedFiles(t *testing.T) {
	t.Parallel()
	for name, stores := range map[string]func(t *testing.T) harness.Env{
		"embedded": func(t *testing.T) harness.Env { return harness.Env{"DATA_DIR": t.TempDir()} },
		"postgres and redis": func(t *testing.T) harness.Env {
			redis := testkit.StartRedis(t)
			redis.MustDo("SET", "telapi:lease:media-cleaner", "this test", "PX", "600000") // keeps the server from cleaning up
			return harness.Env{"DATABASE_URL": harness.Database(t), "REDIS_URL": redis.URL()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			provider, media := newSpeechProvider(t), harness.StartMedia(t)
			env := harness.Merge(stores(t), provider.env, media.Env)
			i := harness.Start(t, env)
			tenant := harness.NewTenant(t, i, "tenant")
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
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("audio"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(path, when, when); err != nil {
					t.Fatal(err)
				}
				return path
			}
			orphan := "aa/" + strings.Repeat("a", 64) + ".alaw"
			old := addFile(orphan, 2*time.Hour)
			young := addFile("bb/"+strings.Repeat("b", 64)+".alaw", time.Minute)
			foreign := addFile("ab/hello.pcm", 1000*time.Hour)
			if err := os.Remove(file(lost)); err != nil {
				t.Fatal(err)
			}
			made := time.Now().Add(-time.Minute) // before the row, however slow the upload was
			if err := os.Chtimes(file(expired), made, made); err != nil {
				t.Fatal(err)
			}
			testkit.Until(t, "the audio expires", func() bool {
				resp, _ := i.Call(t, "GET", expired.URL, "X-API-Key", tenant.Key)
				return resp.StatusCode == 404
			})

			if env["REDIS_URL"] == "" {
				if err := i.Stop(); err != nil { // works without a server
					t.Fatal(err)
				}
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
			if env["REDIS_URL"] == "" {
				i = harness.Start(t, env)
			}
			for text, cached := range map[string]bool{"kept": true, "later": true, "expired": false, "lost": false} {
				if s := speak(t, i, tenant.Key, fmt.Sprintf(`{"text":%q}`, text)); s.Cached != cached {
					t.Errorf("%q after the cleanup: %+v, want cached: %v", text, s, cached)
				}
			}
		})
	}
	env := harness.Env{"DATA_DIR": t.TempDir()}
	telapi(t, env, "migrate")
	if r := telapi(t, env, "media", "gc"); r.exit != 1 || !strings.Contains(r.stderr, "TTS_MEDIA_CACHE_BASE_URL") {
		t.Errorf("without a media service: %+v, want exit 1 and the missing setting", r)
	}
}
