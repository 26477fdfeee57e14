package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// A local server takes the part of the model: it repeats the conversation, and fails
// on request.
func TestExampleModelBotAnswers(t *testing.T) {
	for name, stream := range map[string]string{"whole": "0", "streamed": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("STREAM", stream)
			modelBotAnswers(t)
		})
	}
}

func modelBotAnswers(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Model    string
			Stream   bool
			Messages []struct{ Role, Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		said := []string{request.Model}
		for _, m := range request.Messages[1:] {
			said = append(said, m.Role+" "+m.Content)
		}
		if strings.HasSuffix(said[len(said)-1], "fail") || request.Messages[0].Role != "system" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if request.Stream {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\ndata: {\"choices\":[]}\n\ndata: [DONE]\n\n", strings.Join(said, "|"))
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": strings.Join(said, "|")}}}})
	}))
	t.Cleanup(model.Close)
	t.Setenv("OPENAI_BASE_URL", model.URL+"/v1")
	t.Setenv("OPENAI_API_KEY", "key")
	t.Setenv("OPENAI_MODEL", "small")

	port := testkit.FreePort(t)
	bot, output := startBot(t, []string{testkit.Node(t), "../../examples/bot-openai/bot.mjs"}, fmt.Sprintf("http://localhost:%d", port))
	i, _, out := harness.Dev(t, harness.Env{"DATA_DIR": t.TempDir(), "TELAPI_PORT": fmt.Sprint(port)}, "--bot", bot)
	b, _ := out.Connect(t, i, "chat")
	b.Chat("hi")
	readUntil(b, "chat", "small|user hi")
	b.Chat("fail")
	b.Chat("again")
	readUntil(b, "chat", "small|user hi|assistant small|user hi|user again")
	testkit.Until(t, "the bot prints the failure of the model", func() bool { return strings.Contains(output(), "the model returned 500") })
}
