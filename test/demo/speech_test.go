package demo

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"telapi/internal/app"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/talk"
)

// withMedia starts a media service and adds it to an environment.
func withMedia(t *testing.T, env boot.Env) boot.Env {
	t.Helper()
	own := boot.Env{"MEDIA_PORT": "0", "DATA_DIR": t.TempDir()}
	m, err := app.NewMedia(t.Context(), boot.Config(t, own), app.Options{Log: &boot.Log{}})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) { _ = m.Run(ctx) })
	env["TTS_MEDIA_CACHE_BASE_URL"] = m.URL()
	return env
}

// joinAudio joins the audio of consecutive frames.
func joinAudio(t *testing.T, seen []talk.Received) (alaw []byte) {
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
			t.Fatalf("frame %d is %s (%v)", next, m.Audio, err)
		}
		piece, err := base64.StdEncoding.DecodeString(frame.Data)
		if err != nil || len(piece) > 160 {
			t.Fatalf("frame %d has %d bytes, %v", next, len(piece), err)
		}
		next++
		alaw = append(alaw, piece...)
	}
	return alaw
}

func TestSpeechIsCachedAndStreamedInRealTime(t *testing.T) {
	t.Parallel()
	h := newFixture(t, withMedia(t, boot.Env{}))
	h.runtime(t, "demo")
	b := open(t, h.Instance, "chat")
	var first []byte
	for _, cached := range []string{"speech synthesized", "speech from media cache"} {
		b.Chat("speak")
		seen := until(b, "audio", `"last":true`)
		audio := joinAudio(t, seen)
		if first == nil {
			first = audio
		}
		if len(audio) < 8000 || string(audio) != string(first) {
			t.Errorf("%d bytes of audio, %d before", len(audio), len(first))
		}
		if took, ms := seen[len(seen)-1].Timestamp-seen[1].Timestamp, int64(len(audio)/8); took < ms/2 {
			t.Errorf("%d ms of speech were sent within %d", ms, took)
		}
		poll.Until(t, cached, func() bool { return strings.Contains(h.titles(b.Session), cached) })
	}
}

func TestSpokenCallEndsAfterPlayback(t *testing.T) {
	t.Parallel()
	h := newFixture(t, withMedia(t, boot.Env{}))
	h.runtime(t, "demo")
	b := open(t, h.Instance, "audio")
	until(b, "audio", `"last":true`) // the greeting
	b.Chat("hang up")
	until(b, "chat", "Goodbye.")
	until(b, "audio", `"last":true`)
	if got := b.CloseCode(); got != 4503 {
		t.Errorf("closed with %d", got)
	}
	if titles := h.titles(b.Session); strings.Index(titles, "played") > strings.Index(titles, "playback finished") {
		t.Errorf("playback not finished: %s", titles)
	}
}

func TestCallContinuesWithoutSpeech(t *testing.T) {
	t.Parallel()
	h := newFixture(t, boot.Env{"SPEECH_PROVIDERS": "openai", "SPEECH_OPENAI_URL": "http://127.0.0.1:1", "SPEECH_RETRIES": "0"})
	h.runtime(t, "demo")
	b := open(t, h.Instance, "audio")
	until(b, "chat", "Say help")
	poll.Until(t, "the greeting fails before it is interrupted", func() bool {
		return strings.Contains(h.titles(b.Session), "speech unavailable")
	})
	b.Chat("hang up")
	until(b, "chat", "Goodbye.")
	if got := b.CloseCode(); got != 4503 {
		t.Errorf("closed with %d", got)
	}
	if titles := h.titles(b.Session); strings.Count(titles, "speech unavailable") != 2 {
		t.Errorf("want two failures: %s", titles)
	}
}
