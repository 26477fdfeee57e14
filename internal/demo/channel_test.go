package demo

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
		ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: "call"})
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
		} else if item == first {
			t.Error("work item with lost token was reused")
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
