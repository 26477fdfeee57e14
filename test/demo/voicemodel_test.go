package demo

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// modelServer implements the parts of OpenAI's API that the demo uses. Recognition
// returns the duration of the WAV file; the model counts the messages of a conversation.
func modelServer(t *testing.T, fail *atomic.Bool) *httptest.Server {
	mux := http.NewServeMux()
	reject := func(w http.ResponseWriter, r *http.Request) bool {
		if fail.Load() || r.Header.Get("Authorization") != "Bearer sk-secret" {
			http.Error(w, `{"error":"no capacity"}`, http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	mux.HandleFunc("POST /v1/audio/transcriptions", func(w http.ResponseWriter, r *http.Request) {
		if reject(w, r) {
			return
		}
		file, header, err := r.FormFile("file")
		if err != nil || r.FormValue("model") != "ears" || !strings.HasSuffix(header.Filename, ".wav") {
			http.Error(w, "bad form", http.StatusBadRequest)
			return
		}
		wav, _ := io.ReadAll(file)
		if len(wav) < 44 || int(binary.LittleEndian.Uint32(wav[40:])) != len(wav)-44 {
			http.Error(w, "bad WAV header", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"text": fmt.Sprintf("%s %d s of sound", wav[:4], (len(wav)-44)/16_000)})
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if reject(w, r) {
			return
		}
		var request struct {
			Model    string
			Messages []struct{ Role, Content string }
		}
		if json.NewDecoder(r.Body).Decode(&request) != nil || request.Model != "brain" || request.Messages[0].Role != "system" {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		answer := fmt.Sprintf("Message %d was: %s", len(request.Messages)-1, request.Messages[len(request.Messages)-1].Content)
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]string{"role": "assistant", "content": answer}}}})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func TestVoiceConversationWithModel(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	server := modelServer(t, &fail)
	i := harness.StartDev(t, harness.Env{
		"DEMO_STT_URL": server.URL, "DEMO_STT_MODEL": "ears", "DEMO_STT_KEY": "sk-secret",
		"DEMO_LLM_URL": server.URL + "/v1", "DEMO_LLM_MODEL": "brain", "DEMO_LLM_KEY": "sk-secret",
	}, true)
	v := startCall(t, i)
	v.say(tone(1200*time.Millisecond, -20, 440))
	v.say(quiet())
	// On a busy machine a pause can divide what is said into several messages.
	v.until("chat", `s of sound","from":"caller"`)
	v.until("chat", "Message 1 was: RIFF ")
	v.Chat("and now?")
	if answer := v.until("chat", "was: and now?"); strings.Contains(answer.Raw, "Message 1 ") {
		t.Errorf("the model got no earlier messages: %s", answer.Raw)
	}
	v.Chat("transfer me abroad") // the script has priority
	v.until("chat", "denied")

	fail.Store(true)
	v.Chat("still there?")
	v.until("chat", "The bot could not answer: the server in DEMO_LLM_URL returned status 503")
	v.say(tone(1200*time.Millisecond, -20, 440))
	v.say(quiet())
	v.until("chat", "Speech recognition failed: the server in DEMO_STT_URL returned status 503")
	if i.Log.Has("sk-secret") {
		t.Error("the log contains the key")
	}
}

// The offer of a WebRTC session has ICE servers with credentials of its own.
func TestOfferContainsICEServers(t *testing.T) {
	t.Parallel()
	env := harness.WithDataDir(t, harness.Env{"WEBRTC_ICE_SERVERS": "turn:turn.example", "TURN_SHARED_SECRET": "north"})
	i := harness.StartDev(t, env, false)
	runtime := harness.StartRuntime(t, i)
	for mode, want := range map[string]int{"webrtc": 1, "audio": 0} {
		d, err := i.App.Demo(t.Context())
		testkit.Must(t, err)
		resp, body := i.Post(t, "/api/v1/sessions/token", fmt.Sprintf(`{"endpointId":%q,"mode":%q}`, d.EndpointID, mode), "X-API-Key", d.Key.Reveal())
		var issued struct {
			SessionID, Token string
			ICEServers       []struct{ Username, Credential string }
		}
		if err := json.Unmarshal([]byte(body), &issued); err != nil || resp.StatusCode != http.StatusCreated {
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
		harness.Connect(t, i, issued.SessionID, issued.Token, "").Expect("ready")
		offer := harness.Accept(t, runtime).Session
		if offer == nil || len(offer.ICEServers) != want {
			t.Fatalf("mode %s: offer %+v, want %d ICE servers", mode, offer, want)
		}
		if want > 0 && (offer.ICEServers[0].Username == issued.ICEServers[0].Username || offer.ICEServers[0].Credential == "" ||
			!strings.HasSuffix(offer.ICEServers[0].Username, issued.SessionID+":runtime")) {
			t.Errorf("ICE servers of the runtime are %+v, want another user than the browser's %+v", offer.ICEServers, issued.ICEServers)
		}
	}
}

// The page gets the first words while the model still writes the last sentence.
func TestDemoBotStreamsModel(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Stream   bool
			Messages []struct{ Role, Content string }
		}
		if json.NewDecoder(r.Body).Decode(&request) != nil || !request.Stream {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		write := func(text string) {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", text)
			w.(http.Flusher).Flush()
		}
		write(fmt.Sprintf("Message %d is", len(request.Messages)-1))
		select {
		case <-goOn:
		case <-t.Context().Done(): // the test has failed
			return
		}
		if request.Messages[len(request.Messages)-1].Content == "break off" {
			return
		}
		write(" here. It ends.")
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	i := harness.StartDev(t, harness.Env{"DEMO_LLM_URL": server.URL}, true)
	b := connect(t, i, "chat")
	b.Chat("a question")
	readUntil(b, "chat", `"unfinished":"Message 1 is"`)
	goOn <- struct{}{}
	readUntil(b, "chat", `"text":"Message 1 is here."`)
	readUntil(b, "chat", `"text":"It ends."`)
	b.Chat("break off")
	readUntil(b, "chat", `"unfinished":"Message 3 is"`)
	goOn <- struct{}{}
	readUntil(b, "chat", `"text":"Message 3 is"`)
	readUntil(b, "chat", "The bot could not answer: the model broke off its answer")
}
