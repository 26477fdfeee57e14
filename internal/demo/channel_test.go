package demo

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/redisstore"
)

// A runtime that fails before it commits an entry is replaced by one that handles the
// entry again.
func TestRepeatedEntryHasEffectsOnce(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	engine, err := redisstore.StartEmbedded(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	store, err := callruntime.Locate("", dir)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan struct{}, 9)
	bot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"parts":1}`))
		requests <- struct{}{}
	}))
	defer bot.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var first string
	for _, name := range []string{"first", "second"} {
		r, err := callruntime.New(callruntime.Options{Store: store, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: "call", TeamID: "team", EndpointID: "endpoint"})
		if err != nil {
			t.Fatal(err)
		}
		e := &channelEffects{loopState: newLoopState(), ctx: ctx, ch: ch, RuntimeOptions: RuntimeOptions{Bot: bot.URL, Client: bot.Client()}}
		e.beginEntry("1-1")
		e.send(wire.TypeChat, chat{Text: "one"})
		e.send(wire.TypeChat, chat{Text: "two"})
		item := e.askBot(question{Text: "hi", Part: 1})
		<-requests
		if e.err != nil {
			t.Fatalf("%s: %v", name, e.err)
		}
		if name == "first" {
			first = item
		} else if item != first {
			t.Errorf("the question was asked with the work item %s, want %s", item, first)
		}
		if err := ch.Close(ctx); err != nil {
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

// The bot is asked again what it was asked before a restart and has not answered.
func TestUnansweredQuestionsAreAskedAgain(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	engine, err := redisstore.StartEmbedded(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	store, err := callruntime.Locate("", dir)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan string, 9)
	bot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"parts":1}`))
		requests <- string(body)
	}))
	defer bot.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked := question{Text: "hi", Part: 1, itemID: effectID("call", "1-1", 2)}
	open := func(name string) (*callruntime.Channel, *channelEffects) {
		r, err := callruntime.New(callruntime.Options{Store: store, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: "call", TeamID: "team", EndpointID: "endpoint"})
		if err != nil {
			t.Fatal(err)
		}
		return ch, &channelEffects{loopState: newLoopState(), ctx: ctx, ch: ch, RuntimeOptions: RuntimeOptions{Bot: bot.URL, Client: bot.Client()}}
	}
	ch, e := open("first")
	var before []string
	for _, q := range []question{asked, asked.next(), {DTMF: "1", Part: 1}} {
		e.askBot(q)
		before = append(before, <-requests)
	}
	if err := ch.Close(ctx); err != nil {
		t.Fatal(err)
	}

	ch, e = open("second")
	past := []callruntime.Delivery{{Position: "1-1", Entry: wire.Entry{Kind: wire.KindFrame, Message: &wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte(`{"text":"hi"}`)}}}}
	if err := askAgain(ctx, newCall("chat", e, time.Now), ch, past); err != nil || e.err != nil {
		t.Fatal(err, e.err)
	}
	after := []string{<-requests, <-requests}
	slices.Sort(before[:2])
	slices.Sort(after)
	if !slices.Equal(after, before[:2]) {
		t.Errorf("asked again:\n%s\nwant:\n%s", after, before[:2])
	}
	items, err := ch.WorkItems(ctx)
	if err != nil || len(items) != 2 {
		t.Errorf("open work items: %+v, %v, want the two questions without the digits", items, err)
	}
}
