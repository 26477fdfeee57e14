package demo

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/redisstore"
)

// demoBot is a bot that accepts questions and never answers them. The effects of open
// ask it.
type demoBot struct {
	t         *testing.T
	store     rueidis.ClientOption
	server    *httptest.Server
	questions chan string
}

func newDemoBot(t *testing.T) *demoBot {
	t.Helper()
	dir := t.TempDir()
	engine, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	b := &demoBot{t: t, questions: make(chan string, 9)}
	if b.store, err = calls.Locate("", dir); err != nil {
		t.Fatal(err)
	}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"parts":1}`))
		b.questions <- string(body)
	}))
	t.Cleanup(b.server.Close)
	return b
}

// open returns the effects of a runtime on the channel "call".
func (b *demoBot) open(ctx context.Context, name string) (*calls.Runtime, *channelEffects) {
	b.t.Helper()
	r, err := calls.New(calls.Options{Store: b.store, Name: name})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(r.Close)
	ch, err := r.Open(ctx, calls.OpenOptions{ChannelID: "call", TeamID: "team", EndpointID: "endpoint"})
	if err != nil {
		b.t.Fatal(err)
	}
	return r, &channelEffects{loopState: newLoopState(), ctx: ctx, ch: ch, RuntimeOptions: RuntimeOptions{Bot: b.server.URL, Client: b.server.Client()}}
}

// A runtime that fails before it commits an entry is replaced by one that handles the
// entry again.
func TestRepeatedEntryHasEffectsOnce(t *testing.T) {
	bot := newDemoBot(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var first string
	for _, name := range []string{"first", "second"} {
		r, e := bot.open(ctx, name)
		e.beginEntry("1-1")
		e.send(wire.TypeChat, chat{Text: "one"})
		e.send(wire.TypeChat, chat{Text: "two"})
		item := e.askBot(question{Text: "hi", Part: 1})
		<-bot.questions
		if e.err != nil {
			t.Fatalf("%s: %v", name, e.err)
		}
		if name == "first" {
			first = item
		} else if item != first {
			t.Errorf("the question was asked with the work item %s, want %s", item, first)
		}
		if err := e.ch.Close(ctx); err != nil {
			t.Fatal(err)
		}
		history := r.ObserveHistory("call", "")
		for _, want := range []string{`{"text":"one","from":""}`, `{"text":"two","from":""}`} {
			d, err := history.Receive(ctx)
			if err != nil || string(d.Entry.Message.Chat) != want {
				t.Errorf("%s: sent %s, %v; want %s", name, d.JSON, err, want)
			}
		}
		short, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		if d, err := history.Receive(short); err == nil {
			t.Errorf("%s: also sent %s, want two messages", name, d.JSON)
		}
		stop()
	}
}

// A question that the bot has not answered before a restart is asked again.
func TestUnansweredQuestionsAreAskedAgain(t *testing.T) {
	bot := newDemoBot(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked := question{Text: "hi", Part: 1, itemID: effectID("call", "1-1", 2)}
	_, e := bot.open(ctx, "first")
	var before []string
	for _, q := range []question{asked, asked.next(), {DTMF: "1", Part: 1}} {
		e.askBot(q)
		before = append(before, <-bot.questions)
	}
	if err := e.ch.Close(ctx); err != nil {
		t.Fatal(err)
	}

	_, e = bot.open(ctx, "second")
	past := []calls.Delivery{{Position: "1-1", Entry: wire.Entry{Kind: wire.KindFrame, Message: &wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"hi"}`)}}}}
	if err := askAgain(ctx, newCall("chat", e, time.Now), e.ch, past); err != nil || e.err != nil {
		t.Fatal(err, e.err)
	}
	after := []string{<-bot.questions, <-bot.questions}
	slices.Sort(before[:2])
	slices.Sort(after)
	if !slices.Equal(after, before[:2]) {
		t.Errorf("asked again:\n%s\nwant:\n%s", after, before[:2])
	}
	items, err := e.ch.WorkItems(ctx)
	if err != nil || len(items) != 2 {
		t.Errorf("open work items: %+v, %v, want the two questions without the digits", items, err)
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
		"refused":                  {[]int{400}, "status 400"},
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
