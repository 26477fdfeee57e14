package media

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/speech"
	"telapi/test/testkit"
)

var hello = speech.Utterance{Text: "Hello, world", Voice: "alloy", Model: "tts-1", Speed: 1}

// testSound returns half a second of audio that does not look like text.
func testSound(rate int) speech.Sound {
	s := speech.Sound{Rate: rate, Samples: make([]int16, rate/2)}
	for i := range s.Samples {
		s.Samples[i] = int16(8000 * math.Sin(float64(i)/20))
	}
	return s
}

func openAI(t *testing.T, timeout time.Duration, handle http.HandlerFunc) *OpenAI {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	o := NewOpenAI(OpenAIOptions{URL: server.URL, Key: "sk-secret", Voice: "alloy", Model: "tts-1", Timeout: timeout})
	t.Cleanup(o.http.CloseIdleConnections)
	return o
}

func TestOpenAIRequest(t *testing.T) {
	var body map[string]any
	o := openAI(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/v1/audio/speech" || r.Header.Get("Authorization") != "Bearer sk-secret" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("request %s %s %v, want POST /v1/audio/speech with the key and JSON", r.Method, r.URL, r.Header)
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "audio/pcm")
		pcm := testSound(24000).PCM()
		_, _ = w.Write(pcm[:1001]) // splits a sample
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(pcm[1001:])
	})
	got, err := o.Synthesize(t.Context(), hello)
	if want := testSound(24000); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d samples at %d Hz, %v; want the %d samples sent", len(got.Samples), got.Rate, err, len(want.Samples))
	}
	want := map[string]any{"model": "tts-1", "voice": "alloy", "input": "Hello, world", "speed": 1.0, "response_format": "pcm"}
	if !reflect.DeepEqual(body, want) {
		t.Errorf("request body %v, want %v", body, want)
	}
}

func TestOpenAIErrors(t *testing.T) {
	pcm := testSound(24000).PCM()
	respond := func(status int, contentType string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = w.Write(body)
		}
	}
	for name, tt := range map[string]struct {
		handle   http.HandlerFunc
		message  string
		rejected bool
	}{
		"unknown voice":  {respond(400, "application/json", []byte(`{"error":"sk-secret"}`)), "400", true},
		"unknown model":  {respond(404, "application/json", nil), "404: no error message", true},
		"rejected text":  {respond(422, "application/json", []byte("{\"error\":\n  \"cannot say [Hello, world]\"}")), `422: {"error": "cannot say [[redacted]]"}`, true},
		"long message":   {respond(400, "text/plain", []byte(strings.Repeat("ä", 10_000))), strings.Repeat("ä", 300) + "…", true},
		"internal error": {respond(500, "text/plain", []byte("sk-secret token=abc failed")), "500: [redacted] token=[redacted] failed", false},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, "302", false},
		"JSON instead of PCM":     {respond(200, "application/json", []byte(`{"error":"no"}`)), "application/json", false},
		"HTML":                    {respond(200, "text/html; charset=utf-8", []byte("<html>")), "text/html", false},
		"another format":          {respond(200, "audio/mpeg", pcm), "audio/mpeg", false},
		"HTML with an audio type": {respond(200, "audio/pcm", []byte(strings.Repeat("<html>", 1000))), "text", false},
		"empty body":              {respond(200, "audio/pcm", nil), "0 bytes", false},
		"very short body":         {respond(200, "audio/pcm", pcm[:100]), "100 bytes", false},
		"half a sample":           {respond(200, "audio/pcm", pcm[:9999]), "9999 bytes", false},
		"WAV without samples":     {respond(200, "audio/wav", []byte("RIFF....WAVE")), "WAV", false},
		"truncated body":          {truncate(pcm, true), "EOF", false},
		"truncated chunks":        {truncate(pcm, false), "EOF", false},
		"no response":             {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "no data", false},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(pcm[:8000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "no data", false},
		"endless body": {func(w http.ResponseWriter, _ *http.Request) {
			for piece := make([]byte, 1<<20); ; {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}, "more than", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := 20 * time.Second
			if tt.message == "no data" {
				timeout = 50 * time.Millisecond
			}
			_, err := openAI(t, timeout, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that the server notices a closed connection
				tt.handle(w, r)
			}).Synthesize(t.Context(), hello)
			if err == nil || !strings.Contains(err.Error(), tt.message) || errors.Is(err, speech.ErrRejected) != tt.rejected {
				t.Errorf("error %v, want %q, rejected: %v", err, tt.message, tt.rejected)
			}
			if err != nil && strings.Contains(err.Error(), "sk-secret") {
				t.Errorf("error contains the key: %v", err)
			}
		})
	}
	down := NewOpenAI(OpenAIOptions{URL: "http://127.0.0.1:1", Timeout: time.Second})
	if _, err := down.Synthesize(t.Context(), hello); err == nil || errors.Is(err, speech.ErrRejected) {
		t.Errorf("service down: %v, want an error other than ErrRejected", err)
	}
}

func TestOpenAIConfigurationAndRateLimitErrors(t *testing.T) {
	date := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	for _, tt := range []struct {
		status        int
		retryAfter    string
		misconfigured bool
		min, max      time.Duration // pause; 0: not rate limited
	}{
		{401, "", true, 0, 0},
		{403, "5", true, 0, 0},
		{429, "7", false, 7 * time.Second, 7 * time.Second},
		{429, "0.2", false, time.Second, time.Second},
		{429, "", false, time.Second, time.Second},
		{429, "soon", false, time.Second, time.Second},
		{429, "-5", false, time.Second, time.Second},
		{429, "86400", false, 5 * time.Minute, 5 * time.Minute},
		{429, date, false, time.Second, time.Minute},
		{503, "7", false, 0, 0},
	} {
		o := openAI(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tt.retryAfter)
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, "quota used up")
		})
		_, err := o.Synthesize(t.Context(), hello)
		if err == nil || errors.Is(err, speech.ErrMisconfigured) != tt.misconfigured || errors.Is(err, speech.ErrRejected) || !strings.Contains(err.Error(), "quota used up") {
			t.Errorf("%d: error %v, want the message, misconfigured: %v", tt.status, err, tt.misconfigured)
		}
		if tt.misconfigured && !strings.Contains(err.Error(), "SPEECH_OPENAI_KEY") {
			t.Errorf("%d: error %v, want the setting", tt.status, err)
		}
		limited, ok := errors.AsType[*speech.RateLimitError](err)
		if ok != (tt.max > 0) || ok && (limited.RetryAfter < tt.min || limited.RetryAfter > tt.max) {
			t.Errorf("%d, Retry-After %q: error %#v, want a pause from %s to %s", tt.status, tt.retryAfter, err, tt.min, tt.max)
		}
	}
}

// truncate closes the connection in the middle of a response, which has a
// Content-Length or chunks.
func truncate(body []byte, withLength bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if withLength {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		}
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestOpenAIAcceptsWAV(t *testing.T) {
	want := testSound(22050)
	o := openAI(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wavOf(want)) })
	if got, err := o.Synthesize(t.Context(), hello); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%d samples at %d Hz, %v; want %d at %d Hz", len(got.Samples), got.Rate, err, len(want.Samples), want.Rate)
	}
}

// wavOf returns a WAV file with wrong lengths, as streaming writers create it.
func wavOf(s speech.Sound) []byte {
	le := binary.LittleEndian
	b := append([]byte("RIFF\xff\xff\xff\x7fWAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00\x01\x00\x01\x00"), le.AppendUint32(nil, uint32(s.Rate))...)
	b = append(le.AppendUint32(b, uint32(2*s.Rate)), "\x02\x00\x10\x00data\xff\xff\xff\x7f"...)
	return append(b, s.PCM()...)
}

func FuzzDecode(f *testing.F) {
	f.Add(wavOf(testSound(8000)))
	f.Add([]byte("RIFF"))
	f.Add(testSound(8000).PCM())
	f.Fuzz(func(t *testing.T, body []byte) {
		if s, err := decode(body, 24000); err == nil && (len(s.Samples) == 0 || s.Rate <= 0) {
			t.Errorf("decoded %d samples at %d Hz without an error", len(s.Samples), s.Rate)
		}
	})
}

func TestToneDependsOnTextSpeedAndVoice(t *testing.T) {
	play := func(u speech.Utterance) speech.Sound {
		s, err := Tone{}.Synthesize(t.Context(), u)
		if err != nil || len(s.Samples) == 0 {
			t.Fatalf("%d samples, %v", len(s.Samples), err)
		}
		return s
	}
	once := play(hello)
	if !reflect.DeepEqual(once, play(hello)) {
		t.Error("different audio for the same text")
	}
	longer, slower, other := hello, hello, hello
	longer.Text += longer.Text
	slower.Speed = 0.5
	other.Voice = "echo"
	if n := len(once.Samples); len(play(longer).Samples) != 2*n || len(play(slower).Samples) != 2*n || reflect.DeepEqual(play(other), once) {
		t.Error("text, speed or voice have no effect")
	}
	longest := speech.Utterance{Text: strings.Repeat("a", speech.MaxCharacters), Speed: speech.MinSpeed}
	if n := len(play(longest).Samples); n > 60*once.Rate || n < 50*once.Rate {
		t.Errorf("the longest text takes %d s, want 50 to 60", n/once.Rate)
	}
}

func TestEspeak(t *testing.T) {
	testkit.Espeak(t)
	e, err := NewEspeak(t.Context(), "en", time.Minute)
	testkit.Must(t, err)
	say := func(text, voice string, speed float64) int {
		t.Helper()
		voice, model := e.Resolve(voice, "any-model")
		s, err := e.Synthesize(t.Context(), speech.Utterance{Text: text, Voice: voice, Model: model, Speed: speed})
		if err != nil || s.Rate != 22050 {
			t.Fatalf("%q: %d Hz, %v; want 22050 Hz", text, s.Rate, err)
		}
		return len(s.Samples)
	}
	short, long, fast := say("Good morning.", "", 1), say("Good morning. How are you today?", "", 1), say("Good morning.", "", 2)
	if short >= long || fast >= short {
		t.Errorf("%d samples, longer text %d, faster %d; want more for the longer text, fewer if faster", short, long, fast)
	}
	say("--help -f /etc/passwd; $(reboot) `id`", "en", 1)
	say("Grüß Gott, 世界 🌍", "de+f3", 1)
	for voice, want := range map[string]string{"": "en", "de": "de", "de+f3": "de+f3", "alloy": "en", "../../etc/passwd": "en", "de+../x": "en", "-v": "en"} {
		if got, _ := e.Resolve(voice, ""); got != want {
			t.Errorf("voice %q resolved to %q, want %q", voice, got, want)
		}
	}
	for name, u := range map[string]speech.Utterance{
		"no pronounceable text": {Text: "-", Voice: "en", Speed: 1},
		"more than ten minutes": {Text: strings.Repeat("9 ", 2048), Voice: "en", Speed: speech.MinSpeed},
	} {
		testkit.WantError(t, name, testkit.ErrorOf(e.Synthesize(t.Context(), u)), speech.ErrRejected)
	}
	if voices := e.Voices(); !slices.Contains(voices, "de") || slices.Contains(voices, "Language") || !slices.IsSorted(voices) {
		t.Errorf("voices are %v, want a sorted list with de", voices)
	}
	if _, err := NewEspeak(t.Context(), "unknown", time.Minute); err == nil {
		t.Error("unknown voice was accepted")
	}
}

func TestEspeakErrors(t *testing.T) {
	for name, tt := range map[string]struct{ script, message string }{
		"stalls":  {"exec sleep 60", "no data"},
		"fails":   {"exit 3", "exit status 3"},
		"text":    {"head -c 5000 /dev/zero | tr '\\0' x", "text"},
		"crashes": {"kill -SEGV $$", "segmentation"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "espeak")
			testkit.Must(t, os.WriteFile(program, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700))
			t.Parallel() // after writing the file: a concurrent fork would make it busy
			timeout := 20 * time.Second
			if name == "stalls" {
				timeout = 50 * time.Millisecond
			}
			e := &Espeak{program: program, timeout: timeout, slots: make(chan struct{}, 1)}
			if _, err := e.Synthesize(t.Context(), hello); err == nil || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("error %v, want %q", err, tt.message)
			}
		})
	}
	busy := &Espeak{slots: make(chan struct{})}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.WantError(t, "cancelled while waiting for a free process", testkit.ErrorOf(busy.Synthesize(cancelled, hello)), context.Canceled)
}
