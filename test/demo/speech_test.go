package demo

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"telapi/internal/app"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// withMedia starts a media service and adds it to an environment.
func withMedia(t *testing.T, env harness.Env) harness.Env {
	t.Helper()
	settings := harness.Env{"MEDIA_PORT": "0", "MEDIA_HOST": "127.0.0.1", "DATA_DIR": t.TempDir()}
	m, err := app.NewMedia(t.Context(), harness.Config(t, settings), app.Options{Log: &testkit.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	runInBackground(t, func(ctx context.Context) { _ = m.Run(ctx) })
	env["TTS_MEDIA_CACHE_BASE_URL"] = m.URL()
	return env
}

// joinAudio joins the audio of consecutive frames.
func joinAudio(t *testing.T, seen []harness.Received) (alaw []byte) {
	t.Helper()
	next := 0
	for _, m := range seen {
		if m.Type != "audio" {
			continue
		}
		var frame struct {
			Encoding             string
			SampleRate, Sequence int
			Data                 string
		}
		if err := json.Unmarshal(m.Audio, &frame); err != nil || frame.Encoding != "alaw" || frame.SampleRate != 8000 || frame.Sequence != next {
			t.Fatalf("audio frame is %s (%v), want sequence %d of A-law at 8 kHz", m.Audio, err, next)
		}
		piece, err := base64.StdEncoding.DecodeString(frame.Data)
		if err != nil || len(piece) > 160 {
			t.Fatalf("audio frame %d has %d bytes (%v), want at most 160", next, len(piece), err)
		}
		next++
		alaw = append(alaw, piece...)
	}
	return alaw
}

func TestSpeechIsCachedAndStreamedInRealTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t, withMedia(t, harness.Env{}))
	f.startRuntime(t, "demo")
	b := connect(t, f.Instance, "chat")
	var first []byte
	for _, event := range []string{"speech synthesized", "speech from media cache"} {
		b.Chat("speak")
		seen := readUntil(b, "audio", `"last":true`)
		audio := joinAudio(t, seen)
		if first == nil {
			first = audio
		}
		if len(audio) < 8000 || string(audio) != string(first) {
			t.Errorf("%d bytes of audio, want the same %d bytes as before and at least 8000", len(audio), len(first))
		}
		if took, ms := seen[len(seen)-1].Timestamp-seen[1].Timestamp, int64(len(audio)/8); took < ms/2 {
			t.Errorf("%d ms of speech were sent within %d ms, want real time", ms, took)
		}
		testkit.Until(t, event, func() bool { return strings.Contains(f.titles(b.Session), event) })
	}
}

func TestSpokenCallEndsAfterPlayback(t *testing.T) {
	t.Parallel()
	f := newFixture(t, withMedia(t, harness.Env{}))
	f.startRuntime(t, "demo")
	b := connect(t, f.Instance, "audio")
	readUntil(b, "audio", `"last":true`) // the greeting
	b.Chat("hang up")
	readUntil(b, "chat", "Goodbye.")
	readUntil(b, "audio", `"last":true`)
	if got := b.CloseCode(); got != 4503 {
		t.Errorf("close code %d, want 4503", got)
	}
	if titles := f.titles(b.Session); strings.Index(titles, "played") > strings.Index(titles, "playback finished") {
		t.Errorf("want the audio to be played before the playback is reported as finished: %s", titles)
	}
}

func TestCallContinuesWithoutSpeech(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{"SPEECH_PROVIDERS": "openai", "SPEECH_OPENAI_URL": "http://127.0.0.1:1", "SPEECH_RETRIES": "0"})
	f.startRuntime(t, "demo")
	b := connect(t, f.Instance, "audio")
	readUntil(b, "chat", "demo bot")
	testkit.Until(t, "the greeting fails before it is interrupted", func() bool {
		return strings.Contains(f.titles(b.Session), "speech unavailable")
	})
	b.Chat("hang up")
	readUntil(b, "chat", "Goodbye.")
	if got := b.CloseCode(); got != 4503 {
		t.Errorf("close code %d, want 4503", got)
	}
	if titles := f.titles(b.Session); strings.Count(titles, "speech unavailable") != 2 {
		t.Errorf("want \"speech unavailable\" twice: %s", titles)
	}
}
