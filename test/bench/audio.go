package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

const (
	tokensPerSecond = 30 // of a model
	answerTokens    = 60
)

// slowModel is a server with OpenAI's API that writes a number of tokens per second. It streams only
// if it can.
func slowModel(streams bool) *httptest.Server {
	text := strings.Repeat("Your parcel left the depot this morning and arrives before noon. ", answerTokens/10)
	tokens := strings.SplitAfter(text, " ")[:answerTokens]
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if streams {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		for _, token := range tokens {
			time.Sleep(time.Second / tokensPerSecond)
			if streams {
				fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", token)
				_ = http.NewResponseController(w).Flush()
			}
		}
		if streams {
			fmt.Fprint(w, "data: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%q}}]}`, strings.Join(tokens, ""))
	}))
}

// timeToAudio returns how long a caller of the demo waits for the voice of its bot, which asks a
// slow model.
func timeToAudio(at *site, streams bool) time.Duration {
	model := slowModel(streams)
	defer model.Close()
	cmd := exec.Command(at.binary, "dev", "--json")
	cmd.Env = append(os.Environ(), "TELAPI_PORT=0", "OTEL_ENABLED=false", "DATA_DIR="+program.TempDir(), "DEMO_LLM_URL="+model.URL)
	p := start(cmd)
	defer p.kill()
	var output struct{ URL, Key, EndpointID string }
	check(json.Unmarshal([]byte(p.line), &output))
	t := &telapi{process: p, key: output.Key, endpoint: output.EndpointID}
	t.addr = net.JoinHostPort("127.0.0.1", must(url.Parse(output.URL)).Port())
	var token sessionToken
	body := fmt.Sprintf(`{"endpointId":%q,"mode":"audio"}`, t.endpoint)
	check(json.Unmarshal(t.request(http.MethodPost, "/api/v1/sessions/token", body, http.StatusCreated), &token))
	conn := t.open(token)
	defer conn.Close()
	waitForAudio(conn, true) // the end of the greeting
	start := time.Now()
	check(conn.WriteMessage(websocket.TextMessage, []byte(chatFrame(token.SessionID, "to_ari"))))
	waitForAudio(conn, false)
	return time.Since(start)
}

// waitForAudio reads up to the next frame of speech, or to the last one of a text.
func waitForAudio(conn *websocket.Conn, last bool) {
	for {
		var m struct {
			Type  string
			Audio struct{ Last bool }
		}
		check(json.Unmarshal(must(read(conn)), &m))
		if m.Type == "audio" && (m.Audio.Last || !last) {
			return
		}
	}
}

// firstAudio compares the time to the first audio of an answer that streams with that of one in one piece.
func firstAudio(at *site, _ settings) {
	fmt.Printf("the demo with a model with %d tokens/s and %d tokens\n", tokensPerSecond, answerTokens)
	streamed, whole := timeToAudio(at, true), timeToAudio(at, false)
	fmt.Printf("  first audio after %.2f s, in one piece after %.2f s, ratio %.2f (target: less than 0.50)\n",
		streamed.Seconds(), whole.Seconds(), streamed.Seconds()/whole.Seconds())
}
