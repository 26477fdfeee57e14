package demo

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// exampleBots returns the commands that run the bots in examples.
func exampleBots(t *testing.T) map[string][]string {
	return map[string][]string{
		"python":           {testkit.Python(t), "../../examples/bot-python/bot.py"},
		"node":             {testkit.Node(t), "../../examples/bot-node/bot.mjs"},
		"python, streamed": {"env", "STREAM=1", testkit.Python(t), "../../examples/bot-python/bot.py"},
		"node, streamed":   {"env", "STREAM=1", testkit.Node(t), "../../examples/bot-node/bot.mjs"},
	}
}

// startBot runs a bot until the test ends. It returns the bot's URL and its output.
func startBot(t *testing.T, command []string, api string) (url string, output func() string) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PORT=0", "TELAPI_URL="+api)
	line := regexp.MustCompile(`bot listens on (\S+)\n`)
	output = testkit.StartProgram(t, cmd, line.MatchString)
	return line.FindStringSubmatch(output())[1], output
}

func TestExampleBotsAnswer(t *testing.T) {
	t.Parallel()
	for name, command := range exampleBots(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := testkit.FreePort(t)
			bot, output := startBot(t, command, fmt.Sprintf("http://localhost:%d", port))
			i, _, out := harness.Dev(t, harness.Env{"DATA_DIR": t.TempDir(), "TELAPI_PORT": fmt.Sprint(port)}, "--bot", bot)
			b, _ := out.Connect(t, i, "chat")
			b.Chat("Grüß Gott 🌍")
			readUntil(b, "chat", "You said: Grüß Gott 🌍")
			b.Chat("goodbye")
			readUntil(b, "chat", "Goodbye.")
			testkit.Equal(t, "close code", b.CloseCode(), 4503)
			testkit.Until(t, "the bot prints its receipts", func() bool { return strings.Count(output(), `"status":"accepted"`) == 2 })
		})
	}
}

// askBot posts to a bot.
func askBot(t *testing.T, bot, body string) (status int, response string) {
	t.Helper()
	resp, err := http.Post(bot, "application/json", strings.NewReader(body))
	testkit.Must(t, err)
	content, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	_ = resp.Body.Close()
	return resp.StatusCode, string(content)
}

func TestExampleBotsNameOtherCallbackURL(t *testing.T) {
	t.Parallel()
	bots := exampleBots(t)
	bots["openai"] = []string{testkit.Node(t), "../../examples/bot-openai/bot.mjs"}
	for name, command := range bots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bot, output := startBot(t, command, "http://localhost:3001")
			status, got := askBot(t, bot, `{"channelId":"c","text":"hi","callback":{"url":"http://192.0.2.1/x","token":"cbt_x"}}`)
			want := "callback.url http://192.0.2.1/x is not at TELAPI_URL http://localhost:3001: set TELAPI_URL\n"
			if status != 400 || got != want {
				t.Errorf("the response has status %d and %q, want 400 and %q", status, got, want)
			}
			testkit.Until(t, "the bot prints the problem", func() bool { return strings.Contains(output(), want) })
		})
	}
}

func TestExampleBotsRetryAndReject(t *testing.T) {
	t.Parallel()
	for name, command := range exampleBots(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type request struct{ token, body string }
			requests := make(chan request, 10)
			responses := make(chan func(http.ResponseWriter), 10)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				requests <- request{r.Header.Get("token"), string(body)}
				(<-responses)(w)
			}))
			t.Cleanup(api.Close)
			responses <- func(http.ResponseWriter) { panic(http.ErrAbortHandler) } // no response
			responses <- func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }
			responses <- func(w http.ResponseWriter) { w.WriteHeader(http.StatusConflict) }

			bot, output := startBot(t, command, api.URL)
			ask := func(body string) int {
				status, _ := askBot(t, bot, body)
				return status
			}
			work := func(url string) string {
				return fmt.Sprintf(`{"channelId":"c","text":"hi","callback":{"url":%q,"token":"cbt_x"}}`, url)
			}
			for _, invalid := range []string{"", "{}", "[]", "null", work("http://192.0.2.1/"), work(api.URL + ".example/"), `{"callback":{"url":"` + api.URL + `/"}}`} {
				testkit.Equal(t, fmt.Sprintf("%s: status", invalid), ask(invalid), 400)
			}
			if got := ask(work(api.URL + "/api/v1/webhooks/bot/c")); got != 202 {
				t.Fatalf("status %d, want 202", got)
			}
			var first request
			for n := range 3 {
				select {
				case r := <-requests:
					if n == 0 {
						first = r
					}
					said := strings.NewReplacer(`{"delta": "`, "", `{"delta":"`, "", `"}`+"\n", "").Replace(r.body) // of a stream
					if r != first || r.token != "cbt_x" || !strings.Contains(said, "You said: hi") {
						t.Errorf("attempt %d: %+v, want the same as before: %+v", n+1, r, first)
					}
				case <-time.After(testkit.Timeout):
					t.Fatalf("no attempt %d; output %s", n+1, output())
				}
			}
			testkit.Until(t, "the bot prints the last response", func() bool { return strings.Contains(output(), "409") })
		})
	}
}
