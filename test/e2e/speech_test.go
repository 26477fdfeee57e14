package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"telapi/internal/audio"
	"telapi/internal/usage"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
)

const speechPath = "/api/v1/runtime/speech"

// orator is a service with OpenAI's interface that says the same whatever it is
// asked, and can be made to wait or to fail.
type orator struct {
	asked  atomic.Int64
	status atomic.Int64
	gate   atomic.Pointer[chan struct{}]
	env    boot.Env
}

func newOrator(t *testing.T) *orator {
	o := &orator{}
	sound := audio.Sound{Rate: 24000, Samples: make([]int16, 24000)}
	for i := range sound.Samples {
		sound.Samples[i] = int16(8000 * math.Sin(float64(i)/9))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or nobody notices who leaves
		o.asked.Add(1)
		if gate := o.gate.Load(); gate != nil {
			select {
			case <-*gate:
			case <-r.Context().Done():
				return
			}
		}
		if status := o.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		w.Header().Set("Content-Type", "audio/pcm")
		_, _ = w.Write(sound.PCM())
	}))
	t.Cleanup(server.Close)
	o.env = boot.Env{"SPEECH_PROVIDERS": "openai", "SPEECH_OPENAI_URL": server.URL, "SPEECH_CONNECTION_TIMEOUT": "30s", "SPEECH_RETRIES": "0"}
	return o
}

// wait lets whoever asks wait until the returned function is called.
func (o *orator) wait() (speakUp func()) {
	gate := make(chan struct{})
	o.gate.Store(&gate)
	return func() { o.gate.Store(nil); close(gate) }
}

type spoken struct {
	Hash, Provider, Encoding, URL, ExpiresAt string
	Cached                                   bool
	SampleRate, Characters                   int
	Audio                                    []byte
}

// order asks for speech and returns whatever is answered.
func order(t *testing.T, i *boot.Instance, key, body string) (answer, string) {
	t.Helper()
	return post(t, i, speechPath, body, "X-API-Key", key)
}

func speak(t *testing.T, i *boot.Instance, key, body string) (s spoken) {
	t.Helper()
	resp, text := order(t, i, key, body)
	if resp.StatusCode != 200 {
		t.Fatalf("%s: %d %s", body, resp.StatusCode, text)
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// eventuallyCounted waits until the account says so. It is read as an operator
// does, so that asking often meets no limit.
func eventuallyCounted(t *testing.T, i *boot.Instance, teamID string, characters, billed, requests int64) {
	t.Helper()
	want := usage.Counts{Characters: characters, Cached: characters - billed, Billed: billed, Requests: requests}
	now := time.Now() // of a month that may have begun since
	query, err := usage.ParseQuery(teamID, url.Values{"from": {now.UTC().AddDate(0, 0, -1).Format(time.DateOnly)}}, now)
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, fmt.Sprintf("the account says %+v", want), func() bool {
		report, err := i.App.Admin().Usage.Report(t.Context(), query)
		return err == nil && report.Total == want
	})
}

func TestSynthesizedAudioIsPrivateToTeam(t *testing.T) {
	backends(t, func(t *testing.T, env boot.Env) {
		o, media := newOrator(t), boot.StartMedia(t)
		i := boot.Start(t, boot.With(env, o.env, media.Env))
		own, foreign := newTenant(t, i, "own"), newTenant(t, i, "foreign")
		first := speak(t, i, own.key, `{"text":"Grüß Gott 🌍","endpointId":"`+own.endpoint.ID+`","ttl":3600}`)
		again := speak(t, i, own.key, `{"text":"Grüß Gott 🌍"}`)
		if first.Cached || !again.Cached || again.URL != speechPath+"/"+first.Hash+".alaw" || again.Characters != 11 || again.SampleRate != 8000 || again.ExpiresAt == "" || o.asked.Load() != 1 {
			t.Fatalf("%+v, then %+v; asked %d times", first, again, o.asked.Load())
		}
		if pcm := speak(t, i, own.key, `{"text":"Grüß Gott 🌍","encoding":"pcm"}`); pcm.Cached || pcm.Hash != first.Hash {
			t.Errorf("another encoding: %+v", pcm)
		}
		get := func(status int, headers ...string) (answer, string) {
			t.Helper()
			resp, body := call(t, i, "GET", first.URL, append(headers, "X-API-Key", own.key)...)
			if resp.StatusCode != status {
				t.Errorf("%v: %d %.200s, want %d", headers, resp.StatusCode, body, status)
			}
			return resp, body
		}
		whole, sound := get(200)
		if len(sound) != 8000 || whole.Header.Get("Content-Type") != "audio/x-alaw-basic" || whole.Header.Get("Content-Length") != "8000" || whole.Header.Get("ETag") == "" {
			t.Errorf("%d bytes with %v", len(sound), whole.Header)
		}
		if part, body := get(206, "Range", "bytes=100-199"); body != sound[100:200] || part.Header.Get("Content-Range") != "bytes 100-199/8000" {
			t.Errorf("a part: %d bytes with %v", len(body), part.Header)
		}
		if parts, body := get(206, "Range", "bytes=0-9,20-29"); !strings.HasPrefix(parts.Header.Get("Content-Type"), "multipart/byteranges") || !strings.Contains(body, sound[20:30]) {
			t.Errorf("two parts with %v", parts.Header)
		}
		get(304, "If-None-Match", whole.Header.Get("ETag"))
		get(200, "If-Match", whole.Header.Get("ETag"))
		for _, condition := range [][]string{{"If-Match", `"another"`}, {"If-Unmodified-Since", "Thu, 01 Jan 2015 00:00:00 GMT"}} {
			if _, body := get(412, condition...); !strings.Contains(body, code("PRECONDITION_FAILED")) {
				t.Errorf("%v: %s", condition, body)
			}
		}
		var age int
		if _, err := fmt.Sscanf(whole.Header.Get("Cache-Control"), "private, max-age=%d", &age); err != nil || age > 3600 {
			t.Errorf("speech with a ttl of an hour: %v", whole.Header)
		}
		get(200, "Range", "bytes=0-9", "If-Range", `"another"`)
		if beyond, body := get(416, "Range", "bytes=8000-"); beyond.Header.Get("Content-Range") != "bytes */8000" || !strings.Contains(body, code("RANGE_NOT_SATISFIABLE")) {
			t.Errorf("beyond the end: %s with %v", body, beyond.Header)
		}
		if head, body := call(t, i, "HEAD", first.URL, "X-API-Key", own.key); head.StatusCode != 200 || body != "" || head.Header.Get("Content-Length") != "8000" {
			t.Errorf("HEAD: %d with %v", head.StatusCode, head.Header)
		}
		for _, path := range []string{first.URL, speechPath + "/" + strings.Repeat("0", 64) + ".alaw", speechPath + "/x", speechPath + "/..%2f" + first.Hash + ".alaw"} {
			resp, body := call(t, i, "GET", path, "X-API-Key", foreign.key)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		}
		if theirs := speak(t, i, foreign.key, `{"text":"Grüß Gott 🌍"}`); theirs.Cached || theirs.Hash == first.Hash {
			t.Errorf("another team shares the cache: %+v", theirs)
		}
		resp, body := order(t, i, own.key, `{"text":"x","endpointId":"`+foreign.endpoint.ID+`"}`)
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		resp, body = order(t, i, own.key, `{"text":"","speed":9,"encoding":"mp3","provider":"tone"}`)
		wantStatus(t, resp, body, 400, code("VALIDATION_ERROR"))
		eventuallyCounted(t, i, own.team.ID, 33, 22, 3)
		eventuallyCounted(t, i, foreign.team.ID, 11, 11, 1)
	})
}

func TestConcurrentRequestsShareOneSynthesis(t *testing.T) {
	for name, env := range map[string]func(*testing.T) boot.Env{"embedded": func(*testing.T) boot.Env { return boot.Env{} }, "postgres and redis": realStores} {
		t.Run(name, func(t *testing.T) {
			o, media := newOrator(t), boot.StartMedia(t)
			full := boot.With(env(t), o.env, media.Env)
			instances := []*boot.Instance{boot.Start(t, full)}
			if full["REDIS_URL"] != "" { // the embedded stores are one instance's own
				instances = append(instances, boot.Start(t, full))
			}
			own := newTenant(t, instances[0], "own")
			speakUp := o.wait()
			var wg sync.WaitGroup
			var billed atomic.Int64
			for n := range 100 {
				wg.Go(func() {
					s := speak(t, instances[n%len(instances)], own.key, `{"text":"abc"}`)
					if s.URL == "" {
						t.Errorf("%+v", s)
					}
					if !s.Cached {
						billed.Add(1)
					}
				})
			}
			poll.Until(t, "somebody asks", func() bool { return o.asked.Load() > 0 })
			speakUp()
			wg.Wait()
			if o.asked.Load() != 1 || billed.Load() != 1 {
				t.Errorf("%d syntheses, %d billed", o.asked.Load(), billed.Load())
			}
			eventuallyCounted(t, instances[0], own.team.ID, 300, 3, 100)
		})
	}
}

func TestSynthesisIsTakenOverFromKilledInstance(t *testing.T) {
	o, media := newOrator(t), boot.StartMedia(t)
	env := boot.With(realStores(t), o.env, media.Env)
	survivor := boot.Start(t, env)
	own := newTenant(t, survivor, "own")
	port := fmt.Sprint(servers.FreePort(t))
	leader := boot.StartProcess(t, boot.With(env, boot.Env{"TELAPI_PORT": port, "JWT_SECRET": boot.Secret, "DATA_DIR": t.TempDir()}), "serve")
	poll.Until(t, "the leader is up", func() bool {
		resp, err := http.Get("http://127.0.0.1:" + port + "/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	speakUp := o.wait()
	go func() {
		req, _ := http.NewRequest(http.MethodPost, "http://127.0.0.1:"+port+speechPath, strings.NewReader(`{"text":"abc"}`))
		req.Header.Set("X-API-Key", own.key)
		req.Header.Set("Content-Type", "application/json")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	poll.Until(t, "the leader asks", func() bool { return o.asked.Load() == 1 })
	taken := make(chan spoken)
	go func() { taken <- speak(t, survivor, own.key, `{"text":"abc"}`) }()
	_ = leader.Cmd.Process.Signal(syscall.SIGKILL)
	poll.Until(t, "the survivor asks", func() bool { return o.asked.Load() == 2 })
	speakUp()
	if s := <-taken; s.Cached || s.URL == "" {
		t.Errorf("%+v", s)
	}
	eventuallyCounted(t, survivor, own.team.ID, 3, 3, 1)
}

func TestDamagedAudioIsSynthesizedAgain(t *testing.T) {
	o, media := newOrator(t), boot.StartMedia(t)
	i := boot.Start(t, boot.With(o.env, media.Env))
	own := newTenant(t, i, "own")
	s := speak(t, i, own.key, `{"text":"abc"}`)
	_, sound := call(t, i, "GET", s.URL, "X-API-Key", own.key)
	file := filepath.Join(media.Root, s.Hash[:2], s.Hash+".alaw")
	spoilt := bytes.Repeat([]byte{1}, len(sound))
	if err := os.WriteFile(file, spoilt, 0o600); err != nil {
		t.Fatal(err)
	}
	// Whoever reads it sees that it breaks off.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL+s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", own.key)
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("damaged audio was read to its end")
	}
	if again := speak(t, i, own.key, `{"text":"abc"}`); again.Cached || again.URL != s.URL {
		t.Errorf("%+v", again)
	}
	if _, again := call(t, i, "GET", s.URL, "X-API-Key", own.key); again != sound {
		t.Error("other audio than before")
	}
	if !speak(t, i, own.key, `{"text":"abc"}`).Cached || o.asked.Load() != 2 {
		t.Errorf("asked %d times", o.asked.Load())
	}
}

func TestSpeechWorksWithoutMediaService(t *testing.T) {
	o, media := newOrator(t), boot.StartMedia(t)
	i := boot.Start(t, boot.With(o.env, media.Env))
	own := newTenant(t, i, "own")
	health := func(says string) {
		t.Helper()
		poll.Until(t, "/health says "+says, func() bool {
			resp, body := call(t, i, "GET", "/health")
			return resp.StatusCode == 200 && strings.Contains(body, says)
		})
	}
	health(`"media":"ok"`)
	kept := speak(t, i, own.key, `{"text":"kept"}`)
	media.Stop()
	health(`"media":"degraded"`)
	for _, text := range []string{"kept", "new"} {
		if s := speak(t, i, own.key, `{"text":"`+text+`"}`); s.Cached || s.URL != "" || len(s.Audio) != 8000 {
			t.Errorf("%s: %+v", text, s)
		}
	}
	resp, body := call(t, i, "GET", kept.URL, "X-API-Key", own.key)
	wantStatus(t, resp, body, 503, code("SERVICE_UNAVAILABLE"))
	media.Start(t)
	health(`"media":"ok"`)
	poll.Until(t, "the cache is used again", func() bool { return speak(t, i, own.key, `{"text":"kept"}`).Cached })
	if s := speak(t, i, own.key, `{"text":"new"}`); s.URL == "" {
		t.Errorf("%+v", s)
	}
}

func TestNextProviderIsUsedAfterFailure(t *testing.T) {
	o, media := newOrator(t), boot.StartMedia(t)
	i := boot.Start(t, boot.With(o.env, media.Env, boot.Env{"SPEECH_PROVIDERS": "openai,tone"}))
	own := newTenant(t, i, "own")
	o.status.Store(500)
	first := speak(t, i, own.key, `{"text":"abc"}`)
	if again := speak(t, i, own.key, `{"text":"abc","provider":"tone"}`); first.Provider != "tone" || !again.Cached || again.Hash != first.Hash {
		t.Errorf("%+v, then %+v", first, again)
	}
	alone := boot.Start(t, boot.With(o.env, media.Env))
	their := newTenant(t, alone, "their")
	resp, body := order(t, alone, their.key, `{"text":"abc"}`)
	wantStatus(t, resp, body, 503, code("SERVICE_UNAVAILABLE"))
	if resp.Header.Get("Retry-After") == "" || strings.Contains(body, "127.0.0.1") {
		t.Errorf("%s with %v", body, resp.Header)
	}
	silent := boot.Start(t, media.Env)
	resp, body = order(t, silent, newTenant(t, silent, "silent").key, `{"text":"abc"}`)
	wantStatus(t, resp, body, 503, "SPEECH_PROVIDERS")
}
