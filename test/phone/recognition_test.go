package phone

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// recognizer is a server with OpenAI's API for speech recognition. It does not listen: it
// returns the text that the test has set.
type recognizer struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	text     string
	failures int // requests that get the status 500 first
}

func newRecognizer(t *testing.T) *recognizer {
	r := &recognizer{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/audio/transcriptions", r.transcribe)
	r.server = httptest.NewServer(mux)
	t.Cleanup(r.server.Close)
	return r
}

func (r *recognizer) env() harness.Env {
	return harness.Env{"DEMO_STT_URL": r.server.URL + "/v1/", "DEMO_STT_MODEL": "small", "DEMO_STT_KEY": "secret"}
}

// expect sets the result of the next requests.
func (r *recognizer) expect(text string, failures int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text, r.failures = text, failures
}

func (r *recognizer) transcribe(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	testkit.Equal(r.t, "Authorization", req.Header.Get("Authorization"), "Bearer secret")
	testkit.Equal(r.t, "model", req.FormValue("model"), "small")
	file, _, err := req.FormFile("file")
	if err != nil {
		r.t.Errorf("no file: %v", err)
		return
	}
	audio, _ := io.ReadAll(file)
	checkWAV(r.t, audio)
	if r.failures > 0 {
		r.failures--
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprintf(w, `{"text":%q}`, " "+r.text+"\n")
}

// checkWAV checks that a file has up to a second of loud PCM at 8 kHz: less if the test was
// stopped while it spoke.
func checkWAV(t *testing.T, file []byte) {
	t.Helper()
	if len(file) < 44 || !bytes.HasPrefix(file, wav(nil)[:4]) || !bytes.Equal(file[8:40], wav(nil)[8:40]) || int(binary.LittleEndian.Uint32(file[40:])) != len(file)-44 {
		t.Errorf("%d bytes are not a WAV file with 16 bits, mono, 8 kHz", len(file))
		return
	}
	length, level := loudness(samplesOf(file[44:]))
	if length < 60*time.Millisecond || length > 1500*time.Millisecond || level < -20 {
		t.Errorf("the file has %v with %.1f dBFS, want up to a second that is loud", length, level)
	}
}

// What the caller says is recognized and answered. The bot configures the recognition.
func TestRecognition(t *testing.T) {
	t.Parallel()
	r := newRecognizer(t)
	l, e := newLine(t, r.env()), newEar(t)
	l.bot.answer("Book a table", text("For how many?"))
	l.bot.answer("1", text("Repeat that.")+`,"actions":[{"type":"update_stt_config","config":{"retries":1}}]`)
	l.bot.answer("For two", text("Thank you.")+`,"actions":[{"type":"set_voice_input","enabled":false}]`)
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	l.awaitMessage(id, "Say help to hear what I understand.")
	r.expect("Book a table", 0)
	e.speak(t, time.Second)
	l.bot.awaitAsked("Book a table")
	l.awaitMessage(id, `"from":"caller","spoken":true,"text":"Book a table"`, "For how many?")
	r.expect("Book a table", 1)
	e.speak(t, time.Second) // the recognizer fails
	l.awaitMessage(id, `"event":"recognition","state":"failed"`)
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_stt_config"`)
	r.expect("For two", 1)
	e.speak(t, time.Second) // it fails once
	l.awaitMessage(id, `"text":"For two"`, `"result":"done","type":"set_voice_input"`)
	r.expect("Never recognized", 0)
	e.speak(t, time.Second) // nobody listens
	e.press(t, "9")
	s.wait()
	l.awaitIdle()
	if strings.Contains(l.history(id), "Never recognized") {
		t.Error("voice input was off, but the caller was understood")
	}
}

// bargeInMinWordCount counts the words that were recognized.
func TestBargeInAfterWords(t *testing.T) {
	t.Parallel()
	r := newRecognizer(t)
	r.expect("Yes", 0)
	l, e := newLine(t, r.env()), newEar(t)
	l.bot.answer("1", event(strings.Repeat("This is a long announcement. ", 60), "config", `{"sessionParams":{"bargeIn":true,"bargeInMinWordCount":2}}`))
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_dtmf_config"`)
	interrupted := strings.Count(l.history(id), "interrupted")
	e.speak(t, time.Second)
	l.bot.awaitAsked("Yes")
	if got := strings.Count(l.history(id), "interrupted"); got != interrupted {
		t.Error("one word has interrupted the announcement")
	}
	r.expect("Stop it now", 0)
	e.speak(t, time.Second)
	l.awaitMessage(id, `"by":"speech","event":"playback","state":"interrupted"`)
	e.press(t, "9")
	s.wait()
}
