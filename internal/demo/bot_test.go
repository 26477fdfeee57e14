package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/test/testkit"
)

func TestBotPostsOnlyToAPIAndRetries(t *testing.T) {
	tokens := make(chan string, 2)
	requests := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		tokens <- r.Header.Get("Token")
	}))
	defer api.Close()
	bot, err := NewBot(api.URL, api.Client(), nil, NewHub(), slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	ended := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		bot.Run(ctx)
		close(ended)
	}()
	for url, want := range map[string]int{api.URL + "/a": 202, api.URL + "9/a": 400, "http://elsewhere.example/a": 400} {
		body := fmt.Sprintf(`{"text":"hello","part":1,"channelId":"c","callback":{"url":%q,"token":"t"}}`, url)
		response, err := roundTrip(ctx, api.Client(), http.MethodPost, bot.URL(), nil, jsontext.Value(body))
		if err != nil || response.status != want {
			t.Errorf("callback URL %s: status %d, %v; want %d", url, response.status, err, want)
		}
	}
	for range 2 {
		select {
		case token := <-tokens:
			testkit.Equal(t, "posted with token", token, "t")
		case <-time.After(30 * time.Second):
			t.Fatal("answer was not posted again")
		}
	}
	stop()
	<-ended
}

// transportFunc sends requests without a network, as virtual time needs.
type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// However long the runtime takes to ask for the second answer, up to maxNextWait, the bot posts it first.
func TestAnswersOutOfOrderArePostedInReverse(t *testing.T) {
	for name, tt := range map[string]struct {
		asksAfter time.Duration // for part 2; 0: never
		want      string
	}{
		"late":  {maxNextWait - time.Second, "2 after 9.3s, 1 after 10.5s, "},
		"never": {0, "1 after 11.2s, "},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			posts, start := testkit.Buffer{}, time.Now()
			client := &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
				_, _ = fmt.Fprintf(&posts, "%s after %s, ", r.Header.Get("Token"), time.Since(start))
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})}
			const api = "http://api.example"
			bot, err := NewBot(api, client, &Model{}, NewHub(), slog.New(slog.DiscardHandler)) // phrases have priority over the model
			testkit.Must(t, err)
			defer bot.Close()
			bot.ctx = t.Context()
			ask := func(q question) {
				body, err := json.Marshal(botRequest{ChannelID: "c", WorkItemID: q.itemID, question: q, Callback: callbackTarget{URL: api + "/a", Token: fmt.Sprint(q.Part)}})
				testkit.Must(t, err)
				response := httptest.NewRecorder()
				bot.handle(response, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
				if response.Code != http.StatusAccepted {
					t.Fatalf("part %d: status %d, want 202", q.Part, response.Code)
				}
			}
			first := question{Text: "out of order", Part: 1, itemID: "first"}
			ask(first)
			if tt.asksAfter > 0 {
				time.Sleep(tt.asksAfter)
				synctest.Wait()
				if got := posts.String(); got != "" {
					t.Fatalf("posted part %sbefore the runtime asked for part 2", got)
				}
				ask(first.next())
			}
			bot.answers.Wait()
			testkit.Equal(t, "posted part", posts.String(), tt.want)
		})
	}
}

// pieces is the body of a response: each read returns one piece.
type pieces struct{ list []string }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.list) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.list[0])
	p.list = p.list[1:]
	return n, nil
}

func (*pieces) Close() error { return nil }

// What a model writes within a moment is one part of the answer, and the same one if the
// answer is sent again.
func TestWordsOfModelAreCollected(t *testing.T) {
	event := func(text string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
	}
	delta := func(text string) string { return fmt.Sprintf("{\"delta\":%q}\n", text) }
	const role, done = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", "data: [DONE]\n\n"
	const noMemory = "{\"error\":{\"message\":\"no memory\"}}\n\n"
	cut := event("long")
	end, failed := `{"done":true}`, func(reason string) string { return `{"error":{"code":"MODEL_FAILED","message":"` + reason + `"}}` }
	for name, tt := range map[string]struct {
		pieces     []string
		want, text string
	}{
		"joined":         {[]string{role, event("There"), event(" was ") + event("a") + ": comment\n" + event(" \"king\"."), done}, delta("There") + delta(` was a "king".`) + end, `There was a "king".`},
		"cut":            {[]string{event("so") + cut[:9], cut[9:30], cut[30:] + event(" ago"), done}, delta("solong ago") + end, "solong ago"},
		"one piece":      {[]string{event("all") + event(" of it") + done}, delta("all of it") + end, "all of it"},
		"no end":         {[]string{event("There")}, delta("There") + failed("the model broke off its answer"), "There"},
		"failed":         {[]string{event("There"), "data: " + noMemory, done}, delta("There") + failed("no memory"), "There"},
		"failed at once": {[]string{noMemory}, failed("no memory"), ""},
		"other form":     {[]string{"data: {\"choices\":[]}\n\n", "data:[DONE]"}, end, ""},
		"long line":      {[]string{strings.Repeat("x", 60<<10), "\n" + event("There") + done}, delta("There") + end, "There"},
	} {
		answer := newStreamedAnswer(&pieces{tt.pieces})
		var remembered []string
		answer.remember = func(text string) { remembered = append(remembered, text) }
		for attempt := range 2 {
			got, err := io.ReadAll(&answerReader{streamedAnswer: answer})
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, attempt %d: %v, lines\n%s\nwant\n%s", name, attempt, err, got, tt.want)
			}
		}
		answer.breakOff() // too late
		if !slices.Equal(remembered, []string{tt.text}) {
			t.Errorf("%s: remembered %q, want %q once", name, remembered, tt.text)
		}
	}
}

// endless is a model that never ends its line.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

func TestAnswerOfModelIsBounded(t *testing.T) {
	if got, err := io.ReadAll(&answerReader{streamedAnswer: newStreamedAnswer(endless{})}); err != nil || string(got) != modelFailed("the model broke off its answer") {
		t.Errorf("%d bytes and %v from an endless answer, want an error", len(got), err)
	}
}

// slowModel answers a request with an event every 20 seconds, three times.
type slowModel struct{}

func (slowModel) RoundTrip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	go func() {
		for range 3 {
			time.Sleep(20 * time.Second)
			_, _ = io.WriteString(writer, "data: {\"choices\":[{\"delta\":{\"content\":\"so \"}}]}\n\n")
		}
		<-r.Context().Done()
		writer.CloseWithError(context.Cause(r.Context()))
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: reader}, nil
}

func TestModelMayWriteForLongButNotBeSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewModel("DEMO_LLM_URL", "http://model", "small", "")
		m.client.Transport = slowModel{}
		start := time.Now()
		answer, _, err := m.complete(t.Context(), nil)
		testkit.Must(t, err)
		events, _ := io.ReadAll(&answerReader{streamedAnswer: answer})
		if text, took := answer.text, time.Since(start); text != "so so so " || took != time.Minute+wordPause+modelTimeout || !strings.Contains(string(events), "broke off") {
			t.Errorf("%q after %s, and %s", text, took, events)
		}
		_ = answer.body.Close()
	})
}

// A service that rejects a callback does not wait for its end, and the model must not write it.
func TestModelEndsWhenItsAnswerIsRejected(t *testing.T) {
	model, writer := io.Pipe()
	service := transportFunc(func(r *http.Request) (*http.Response, error) {
		go func() { _, _ = io.Copy(io.Discard, r.Body) }()
		_, err := io.WriteString(writer, ":\n") // it is read by then
		return &http.Response{StatusCode: http.StatusGone, Body: http.NoBody}, err
	})
	bot, posted := &Bot{model: &Model{}, events: NewHub(), client: &http.Client{Transport: service}}, make(chan struct{})
	go func() {
		bot.post(t.Context(), botRequest{}, newStreamedAnswer(model), time.Now())
		close(posted)
	}()
	select {
	case <-posted:
	case <-time.After(testkit.Timeout):
		t.Error("the model still writes its answer")
	}
}

func TestModelErrorsAreReadable(t *testing.T) {
	const key = "sk-secret"
	server := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); _, _ = w.Write([]byte(body)) }
	}
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"status":       {server(401, `{"error":"invalid key `+key+`"}`), "the server in DEMO_LLM_URL returned status 401:"},
		"long error":   {server(500, strings.Repeat("x", 10_000)), "…"},
		"not JSON":     {server(200, `<html>`), "no valid response for /v1/chat/completions"},
		"no choices":   {server(200, `{"choices":[]}`), "empty answer"},
		"empty answer": {server(200, `{"choices":[{"message":{"content":" "}}]}`), "empty answer"},
		"endless":      {server(200, strings.Repeat(" ", 2<<20)+`{}`), "no valid response"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, "status 302"},
		"aborted": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "does not answer"},
	} {
		api := httptest.NewServer(tt.handler)
		_, _, err := NewModel("DEMO_LLM_URL", api.URL+"/v1/", "small", key).complete(t.Context(), nil)
		api.Close()
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 400 || strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v, want a short one with %q and without the key", name, err, tt.want)
		}
	}
}

func TestModelGetsKeyNameAndConversation(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Model    string         `json:"model"`
			Messages []modelMessage `json:"messages"`
		}
		var response any
		switch file, header, err := r.FormFile("file"); {
		case r.Header.Get("Authorization") != "Bearer sk-secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v1/audio/transcriptions" && err == nil:
			wav, _ := io.ReadAll(file)
			response = object{"text": fmt.Sprintf(" %s %s %s ", r.FormValue("model"), header.Filename, wav)}
		case r.URL.Path == "/v1/chat/completions" && json.UnmarshalRead(r.Body, &request) == nil:
			text := fmt.Sprint(request.Model, request.Messages[1:], request.Messages[0].Role)
			response = object{"choices": []any{object{"message": modelMessage{"assistant", text}}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, response)
	}))
	t.Cleanup(api.Close)
	model := NewModel("DEMO_LLM_URL", api.URL, "brain", "sk-secret")
	heard, err := model.transcribe(t.Context(), []byte("RIFF"))
	testkit.Must(t, err)
	testkit.Equal(t, "transcription", heard, "brain utterance.wav RIFF")
	bot, err := NewBot("", nil, model, NewHub(), slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	defer bot.Close()
	bot.ctx = t.Context()
	for _, c := range []struct{ text, want string }{{"hi", "brain[{user hi}]system"}, {"so?", "brain[{user hi} {assistant brain[{user hi}]system} {user so?}]system"}} {
		if got := fmt.Sprint(bot.askModel(botRequest{ChannelID: "c", question: question{Text: c.text}})); !strings.Contains(got, c.want) {
			t.Errorf("the model got %s, want %s", got, c.want)
		}
	}
}

// A server may close an idle connection at the moment at which the next question is sent.
func TestQuestionIsAskedAgainOnNewConnection(t *testing.T) {
	var used sync.Map
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if _, again := used.LoadOrStore(r.RemoteAddr, true); again {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte(`{"text":"yes","choices":[{"message":{"content":"yes"}}]}`))
	}))
	t.Cleanup(api.Close)
	model := NewModel("DEMO_LLM_URL", api.URL, "brain", "")
	for range 2 {
		_, err := model.transcribe(t.Context(), []byte("RIFF"))
		testkit.Must(t, err)
		_, text, err := model.complete(t.Context(), nil)
		testkit.Must(t, err)
		testkit.Equal(t, "answer", text, "yes")
		_, err = roundTrip(t.Context(), &model.client, http.MethodPost, api.URL, nil, object{})
		testkit.Must(t, err)
	}
}

func TestSpeechIsRequestedAgainFromAnotherInstance(t *testing.T) {
	for name, tt := range map[string]struct {
		statuses []int // 0: the connection is closed
		want     string
	}{
		"instance ended":           {[]int{0, 200}, ""},
		"no instance for a moment": {[]int{503, 200}, ""},
		"no provider":              {[]int{503, 503}, "status 503"},
		"rejected":                 {[]int{400}, "status 400"},
	} {
		var requests atomic.Int64
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			status := tt.statuses[requests.Add(1)-1]
			if status == 0 || string(body) != `{"text":"Hello."}` {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "speech")
		}))
		e := &channelEffects{RuntimeOptions: RuntimeOptions{API: api.URL, Client: api.Client()}}
		got, err := e.callAPI(t.Context(), http.MethodPost, "/speech", map[string]string{"text": "Hello."})
		if tt.want == "" && (err != nil || string(got) != "speech") || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) || int(requests.Load()) != len(tt.statuses) {
			t.Errorf("%s: got %q, %v after %d requests, want %q after %d", name, got, err, requests.Load(), tt.want, len(tt.statuses))
		}
		api.Close()
	}
}
