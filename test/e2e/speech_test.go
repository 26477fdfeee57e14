package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/speech"
	"telapi/test/harness"
	"telapi/test/testkit"
)

const speechPath = "/api/v1/runtime/speech"

// speechProvider is an OpenAI-compatible server that returns the same audio for
// every request. It can be made to fail.
type speechProvider struct {
	requests atomic.Int64
	status   atomic.Int64 // of responses; 0: 200 with audio
	env      harness.Env  // settings of an instance that uses the provider
}

func newSpeechProvider(t *testing.T) *speechProvider {
	provider := &speechProvider{}
	sound := speech.Sound{Rate: 24000, Samples: make([]int16, 24000)}
	for i := range sound.Samples {
		sound.Samples[i] = int16(8000 * math.Sin(float64(i)/9))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		provider.requests.Add(1)
		if status := provider.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		w.Header().Set("Content-Type", "audio/pcm")
		_, _ = w.Write(sound.PCM())
	}))
	t.Cleanup(server.Close)
	provider.env = harness.Env{"SPEECH_PROVIDERS": "openai", "SPEECH_OPENAI_URL": server.URL, "SPEECH_CONNECTION_TIMEOUT": "30s", "SPEECH_RETRIES": "0"}
	return provider
}

type speechResponse struct {
	Hash, Provider, Encoding, URL, ExpiresAt string
	Cached                                   bool
	SampleRate, Characters                   int
	Audio                                    []byte
}

// requestSpeech returns the response of a request for speech.
func requestSpeech(t *testing.T, i *harness.Instance, key, body string) (harness.Response, string) {
	t.Helper()
	return i.Post(t, speechPath, body, "X-API-Key", key)
}

// speak returns the speech of a request that must succeed.
func speak(t *testing.T, i *harness.Instance, key, body string) (s speechResponse) {
	t.Helper()
	resp, text := requestSpeech(t, i, key, body)
	if resp.StatusCode != 200 {
		t.Fatalf("%s: %d %s, want 200", body, resp.StatusCode, text)
	}
	testkit.Must(t, json.Unmarshal([]byte(text), &s))
	return s
}

// waitForUsage waits for the team's usage. It reads the usage as an operator,
// which is not rate limited.
func waitForUsage(t *testing.T, i *harness.Instance, teamID string, want speech.UsageCounts) {
	t.Helper()
	now := time.Now() // the test may span the end of a month
	query, err := speech.ParseUsageQuery(teamID, url.Values{"from": {now.UTC().AddDate(0, 0, -1).Format(time.DateOnly)}}, now)
	testkit.Must(t, err)
	testkit.Until(t, fmt.Sprintf("usage of %s is %+v", teamID, want), func() bool {
		report, err := speech.SummarizeUsage(t.Context(), i.App.Admin().Usage, query, now)
		return err == nil && report.Total == want
	})
}

func TestSynthesizedAudioIsPrivateToTeam(t *testing.T) {
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		provider, media := newSpeechProvider(t), harness.StartMedia(t)
		i := harness.Start(t, harness.Merge(env, provider.env, media.Env))
		tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
		first := speak(t, i, tenant.Key, `{"text":"Grüß Gott 🌍","endpointId":"`+tenant.Endpoint.ID+`","ttl":3600}`)
		again := speak(t, i, tenant.Key, `{"text":"Grüß Gott 🌍"}`)
		if first.Cached || !again.Cached || again.URL != speechPath+"/"+first.Hash+".alaw" || again.Characters != 11 || again.SampleRate != 8000 || again.ExpiresAt == "" || provider.requests.Load() != 1 {
			t.Fatalf("first %+v, second %+v; %d requests to the provider, want 1", first, again, provider.requests.Load())
		}
		if pcm := speak(t, i, tenant.Key, `{"text":"Grüß Gott 🌍","encoding":"pcm"}`); pcm.Cached || pcm.Hash != first.Hash {
			t.Errorf("other encoding: %+v, want a new synthesis with hash %s", pcm, first.Hash)
		}
		get := func(status int, headers ...string) (harness.Response, string) {
			t.Helper()
			resp, body := i.Call(t, "GET", first.URL, append(headers, "X-API-Key", tenant.Key)...)
			if resp.StatusCode != status {
				t.Errorf("%v: %d %.200s, want %d", headers, resp.StatusCode, body, status)
			}
			return resp, body
		}
		whole, sound := get(200)
		if len(sound) != 8000 || whole.Header.Get("Content-Type") != "audio/x-alaw-basic" || whole.Header.Get("Content-Length") != "8000" || whole.Header.Get("ETag") == "" {
			t.Errorf("GET returned %d bytes with headers %v, want 8000 bytes of audio/x-alaw-basic with an ETag", len(sound), whole.Header)
		}
		if part, body := get(206, "Range", "bytes=100-199"); body != sound[100:200] || part.Header.Get("Content-Range") != "bytes 100-199/8000" {
			t.Errorf("range: %d bytes with headers %v, want bytes 100-199/8000", len(body), part.Header)
		}
		get(304, "If-None-Match", whole.Header.Get("ETag"))
		if _, body := get(412, "If-Match", `"another"`); !strings.Contains(body, code("PRECONDITION_FAILED")) {
			t.Errorf("another version: %s, want PRECONDITION_FAILED", body)
		}
		var age int
		if _, err := fmt.Sscanf(whole.Header.Get("Cache-Control"), "private, max-age=%d", &age); err != nil || age > 3600 {
			t.Errorf("speech with a TTL of an hour: Cache-Control %q, want private with at most 3600 s", whole.Header.Get("Cache-Control"))
		}
		if beyond, body := get(416, "Range", "bytes=8000-"); beyond.Header.Get("Content-Range") != "bytes */8000" || !strings.Contains(body, code("RANGE_NOT_SATISFIABLE")) {
			t.Errorf("range past the end: %s with headers %v, want RANGE_NOT_SATISFIABLE and bytes */8000", body, beyond.Header)
		}
		if head, body := i.Call(t, "HEAD", first.URL, "X-API-Key", tenant.Key); head.StatusCode != 200 || body != "" || head.Header.Get("Content-Length") != "8000" {
			t.Errorf("HEAD: %d %q with headers %v, want 200 with Content-Length 8000", head.StatusCode, body, head.Header)
		}
		for _, path := range []string{first.URL, speechPath + "/" + strings.Repeat("0", 64) + ".alaw", speechPath + "/x", speechPath + "/..%2f" + first.Hash + ".alaw"} {
			expectStatus(t, 404, code("NOT_FOUND"))(i.Call(t, "GET", path, "X-API-Key", foreign.Key))
		}
		if theirs := speak(t, i, foreign.Key, `{"text":"Grüß Gott 🌍"}`); theirs.Cached || theirs.Hash == first.Hash {
			t.Errorf("the cache is shared with another team: %+v", theirs)
		}
		expectStatus(t, 404, code("NOT_FOUND"))(requestSpeech(t, i, tenant.Key, `{"text":"x","endpointId":"`+foreign.Endpoint.ID+`"}`))
		expectStatus(t, 400, code("VALIDATION_ERROR"))(requestSpeech(t, i, tenant.Key, `{"text":"","speed":9,"encoding":"mp3","provider":"tone"}`))
		waitForUsage(t, i, tenant.Team.ID, speech.UsageCounts{Characters: 33, Cached: 11, Billed: 22, Requests: 3})
		waitForUsage(t, i, foreign.Team.ID, speech.UsageCounts{Characters: 11, Billed: 11, Requests: 1})
	})
}

func TestDoctorAsksSpeechProviders(t *testing.T) {
	provider := newSpeechProvider(t)
	env := harness.Merge(provider.env, harness.Env{"JWT_SECRET": harness.Secret, "DATA_DIR": t.TempDir(), "SPEECH_PROVIDERS": "openai,tone", "SPEECH_OPENAI_KEY": "swordfish"})
	r := telapi(t, env, "doctor")
	if r.exit != 0 || !strings.Contains(r.stdout, "provider 1, openai: 1.0 s of audio with voice alloy") || !strings.Contains(r.stdout, "provider 2, tone") || provider.requests.Load() != 1 {
		t.Errorf("exit %d after %d requests, want 0 after 1 and both providers in\n%s%s", r.exit, provider.requests.Load(), r.stdout, r.stderr)
	}
	provider.status.Store(401)
	r = telapi(t, env, "doctor")
	for _, want := range []string{"FAIL", "provider openai", "SPEECH_OPENAI_KEY", "401", "provider 2, tone"} {
		if r.exit != 1 || !strings.Contains(r.stdout, want) || strings.Contains(r.stdout+r.stderr, "swordfish") {
			t.Errorf("wrong key: exit %d, want 1 and %q, without the key, in\n%s%s", r.exit, want, r.stdout, r.stderr)
		}
	}
}
