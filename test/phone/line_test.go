package phone

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/calls"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// program builds the phone once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "phone")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "phone")
	if out, err := exec.Command("go", "-C", "../../examples/phone", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// line is a running phone, the service and the bot behind it.
type line struct {
	t        *testing.T
	address  string // SIP
	control  string // URL of the phone's HTTP interface
	tenant   harness.Tenant
	env      harness.Env // of the phone
	service  harness.Env
	bot      *bot
	process  *exec.Cmd
	output   func() string
	observer *calls.Runtime
}

// commands that the bot may use on the line: all.
func policies() (list []wire.CommandPolicy) {
	for _, name := range []string{
		"hangup", "transfer", "set_barge_in", "set_voice_input", "update_stt_config", "update_tts_config", "set_tts_voice", "set_tts_speaking_rate",
		"play_audio", "send_dtmf", "update_dtmf_config", "update_bot_delay_config", "set_context", "emit_event",
	} {
		list = append(list, wire.CommandPolicy{Type: name, Enabled: true, AllowedTargets: []string{"*"}})
	}
	return list
}

// newLine starts an instance with tones as speech, a bot that may use all commands, and a
// phone.
func newLine(t *testing.T, env harness.Env) *line {
	t.Helper()
	return newLineWith(t, env, policies()...)
}

// newLineWith starts the same, with other policies for commands.
func newLineWith(t *testing.T, env harness.Env, policies ...wire.CommandPolicy) *line {
	t.Helper()
	service := harness.WithDataDir(t, harness.Merge(harness.StartMedia(t).Env, harness.Env{"SPEECH_PROVIDERS": "tone", "TRANSFER_ALLOWED_TARGETS": "*"}))
	i := harness.Start(t, service)
	l := &line{t: t, bot: newBot(t), tenant: harness.NewTenant(t, i, "phone"), service: service}
	l.tenant.Endpoint = harness.NewEndpoint(t, i, team.Endpoint{
		TeamID: l.tenant.Team.ID, Name: "line", Modes: team.Modes,
		Profile: wire.GatewayProfile{CommandSources: []string{wire.SourceBot}, CommandPolicies: policies, Speech: wire.SpeechChain{TTS: []string{"tone"}, STT: []string{"whisper"}}},
	})
	var err error
	l.observer, err = app.OpenRuntime(harness.Config(t, service))
	testkit.Must(t, err)
	t.Cleanup(l.observer.Close)
	l.env = harness.Merge(harness.Env{
		"TELAPI_URL": i.URL, "TELAPI_KEY": l.tenant.Key, "PHONE_ENDPOINT": l.tenant.Endpoint.ID, "PHONE_BOT_URL": l.bot.server.URL,
		"PHONE_STATE": filepath.Join(t.TempDir(), "calls"), "PHONE_MEDIA_TIMEOUT": "10m",
	}, env)
	l.start()
	return l
}

// start starts the phone, again on the same ports.
func (l *line) start() {
	l.t.Helper()
	path, err := program()
	testkit.Must(l.t, err)
	if l.address == "" {
		l.address, l.control = fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(l.t)), fmt.Sprintf("http://127.0.0.1:%d", testkit.FreePort(l.t))
	}
	l.process = exec.Command(path)
	l.process.Env = harness.Environ(harness.Merge(harness.Env{"PHONE_SIP": l.address, "PHONE_HTTP": strings.TrimPrefix(l.control, "http://")}, l.env))
	l.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output := testkit.StartProgram(l.t, l.process, func(output string) bool { return strings.Contains(output, "msg=ready") })
	l.output = output
	l.t.Cleanup(func() {
		if strings.Contains(output(), "DATA RACE") || strings.Contains(output(), "panic:") { // the former in a build with -race
			l.t.Error("the phone has a race or a panic")
		}
		if l.t.Failed() {
			l.t.Logf("output of the phone:\n%s", output())
		}
	})
}

// calls returns the number of calls that the phone has.
func (l *line) calls() int {
	l.t.Helper()
	resp, err := http.Get(l.control + "/calls")
	testkit.Must(l.t, err)
	defer resp.Body.Close()
	var body struct{ Calls int }
	testkit.Must(l.t, json.NewDecoder(resp.Body).Decode(&body))
	return body.Calls
}

func (l *line) awaitIdle() {
	l.t.Helper()
	testkit.Until(l.t, "all calls have ended", func() bool { return l.calls() == 0 })
}

// channel returns the ID of the only channel that the phone has logged.
func (l *line) channel() string {
	l.t.Helper()
	var id string
	testkit.Until(l.t, "the phone has answered a call", func() bool {
		for line := range strings.Lines(l.output()) {
			if strings.Contains(line, "msg=call ") && strings.Contains(line, "state=answered") {
				_, rest, _ := strings.Cut(line, " channel=")
				id, _, _ = strings.Cut(rest, " ")
				return true
			}
		}
		return false
	})
	return id
}

// history returns the messages of a channel, as JSON.
func (l *line) history(id string) string {
	l.t.Helper()
	found, err := l.observer.History(l.t.Context(), id, "", 300)
	testkit.Must(l.t, err)
	var all strings.Builder
	for _, d := range found {
		fmt.Fprintf(&all, "%s\n", d.JSON)
	}
	return all.String()
}

// awaitMessage waits until the channel's history contains a text.
func (l *line) awaitMessage(id string, text ...string) {
	l.t.Helper()
	defer func() {
		if l.t.Failed() {
			l.t.Logf("history of %s:\n%s", id, l.history(id))
		}
	}()
	for _, part := range text {
		testkit.Until(l.t, "the history contains "+part, func() bool { return strings.Contains(l.history(id), part) })
	}
}

// bot answers questions of the phone with callbacks.
type bot struct {
	t      *testing.T
	server *httptest.Server
	client *http.Client

	mu      sync.Mutex
	answers map[string]string // the members of the callback, by what was asked; "*": anything else
	asked   []asked
	posting sync.WaitGroup
}

// asked is a question.
type asked struct {
	ChannelID, WorkItemID, Text, DTMF string
	Context                           map[string]any
	Callback                          struct{ URL, Token string }
}

func newBot(t *testing.T) *bot {
	b := &bot{t: t, client: http.DefaultClient, answers: map[string]string{}}
	b.server = httptest.NewServer(http.HandlerFunc(b.handle))
	t.Cleanup(func() {
		b.server.Close()
		b.posting.Wait()
	})
	return b
}

// answer sets the answer to digits or a text: the members messages and actions of a body.
func (b *bot) answer(question, members string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[question] = members
}

// text returns the member messages of an answer with a text.
func text(text string) string {
	return fmt.Sprintf(`"messages":{"timestamp":%q,"message":[{"content":{"textMessage":{"textPlain":%q}}}]}`, time.Now().Format(time.RFC3339Nano), text)
}

// event returns the member messages of an answer with a text and a control event.
func event(said, name, value string) string {
	return fmt.Sprintf(`"messages":{"timestamp":%q,"message":[{"content":{"textMessage":{"textPlain":%q},"event":{"custom":{"name":%q,"value":%s}}}}]}`,
		time.Now().Format(time.RFC3339Nano), said, name, value)
}

func (b *bot) handle(w http.ResponseWriter, r *http.Request) {
	var q asked
	testkit.NoError(b.t, "question to the bot", json.NewDecoder(r.Body).Decode(&q))
	b.mu.Lock()
	b.asked = append(b.asked, q)
	members, ok := b.answers[q.DTMF+q.Text]
	if !ok {
		members, ok = b.answers["*"]
	}
	b.mu.Unlock()
	w.WriteHeader(http.StatusAccepted)
	if ok {
		b.posting.Go(func() { b.post(q, members) })
	}
}

// post posts a callback, again if the service is unavailable.
func (b *bot) post(q asked, members string) {
	body := fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},%s}`, q.ChannelID, members)
	for range 100 {
		req, _ := http.NewRequest(http.MethodPost, q.Callback.URL, strings.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Token": {q.Callback.Token}}
		resp, err := b.client.Do(req)
		if err == nil {
			reply, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusGone || resp.StatusCode == http.StatusUnauthorized {
				return
			}
			if resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusConflict {
				b.t.Errorf("callback: %d %s", resp.StatusCode, reply)
				return
			}
		}
		time.Sleep(100 * time.Millisecond) // before the next attempt
	}
}

// awaitAsked waits for a question with digits or a text and returns it.
func (b *bot) awaitAsked(question string) (found asked) {
	b.t.Helper()
	testkit.Until(b.t, "the bot is asked "+question, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, q := range b.asked {
			if q.DTMF+q.Text == question {
				found = q
				return true
			}
		}
		return false
	})
	return found
}

const interrupt = syscall.SIGINT
