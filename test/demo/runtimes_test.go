package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/internal/auth"
	"telapi/internal/demo"
	"telapi/internal/endpoint"
	"telapi/test/boot"
	"telapi/test/talk"
)

// house is a server with a demo team, and a bot for runtimes that tests start.
type house struct {
	*boot.Instance
	env    boot.Env
	demo   demo.Resources
	bot    *demo.Bot
	events *demo.Hub
}

func newHouse(t *testing.T, env boot.Env) *house {
	t.Helper()
	env = talk.WithDataDir(t, env)
	env["SESSION_RECONNECT_JITTER"] = "0s"
	h := &house{Instance: boot.StartDev(t, env, false), env: env, events: demo.NewHub()}
	var err error
	if h.demo, err = h.App.Demo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.bot, err = demo.NewBot(h.URL, http.DefaultClient, h.events, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	background(t, h.bot.Run)
	return h
}

// background runs something until the test ends or stop is called.
func background(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func (h *house) runtime(t *testing.T, name string) (stop func()) {
	t.Helper()
	store, err := callruntime.Locate(h.env["REDIS_URL"], h.env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	r, err := demo.NewRuntime(demo.RuntimeOptions{
		Name: name, Store: store, Demo: h.demo, API: h.URL, Bot: h.bot.URL(), Client: http.DefaultClient, Events: h.events, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return background(t, r.Run)
}

// holders are the runtimes that had a session, in order.
func (h *house) holders(session string) (names []string) {
	for title := range strings.Lines(h.story(session)) {
		if name, had := strings.CutSuffix(title, " has the call\n"); had {
			names = append(names, name)
		}
	}
	return names
}

// story is what the demo told of a session, a line each.
func (h *house) story(session string) (titles string) {
	past, cancel := h.events.Subscribe(session, func(demo.Event) {})
	defer cancel()
	for _, e := range past {
		titles += e.Title + "\n"
	}
	return titles
}

func TestTwoRuntimesShareTheSessions(t *testing.T) {
	t.Parallel()
	h := newHouse(t, boot.Env{})
	h.runtime(t, "one")
	h.runtime(t, "two")
	had := map[string]int{}
	for n := 0; n < 8 || len(had) < 2; n++ {
		if n == 60 {
			t.Fatalf("of %d sessions all went to one runtime: %v", n, had)
		}
		b := open(t, h.Instance, "chat")
		b.Chat("hello")
		if seen := show(until(b, "chat", "How are you?")); strings.Count(seen, "demo bot") != 1 {
			t.Errorf("not greeted once: %s", seen)
		}
		if names := h.holders(b.Session); len(names) != 1 {
			t.Errorf("a session was had by %v", names)
		} else {
			had[names[0]]++
		}
	}
}

func TestRuntimeTakesOverWhereAnotherLeftOff(t *testing.T) {
	t.Parallel()
	h := newHouse(t, boot.Env{"SESSION_PING_INTERVAL": "1s"})
	stop := h.runtime(t, "first")
	b := open(t, h.Instance, "chat")
	b.Chat("call me slowly")
	until(b, "chat", "# submits")
	stop()
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"1"}`) // while there is none
	h.runtime(t, "second")
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"2"}`)
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"#"}`)
	if seen := show(until(b, "chat", "You pressed")); !strings.Contains(seen, "You pressed 1 2.") || strings.Contains(seen, "Say help") {
		t.Errorf("not as the first would have gone on: %s", seen)
	}
	if got := fmt.Sprint(h.holders(b.Session)); got != "[first second]" {
		t.Errorf("the session was had by %s", got)
	}
}

func TestForeignSessionsAreLeftToOthers(t *testing.T) {
	t.Parallel()
	h := newHouse(t, boot.Env{})
	h.runtime(t, "demo")
	admin, name := h.App.Admin(), "foreign"
	foreign, err := admin.Teams.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := admin.Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: foreign.ID, Name: name, Modes: endpoint.Modes})
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := admin.Keys.Create(t.Context(), foreign.ID, "", []auth.Scope{auth.CreateCallToken}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	id, token := talk.Issue(t, h.Instance, key.Reveal(), map[string]any{"endpointId": ep.ID, "mode": "chat"})
	theirs := talk.Connect(t, h.Instance, id, token, "")
	theirs.Expect("ready")
	theirs.Chat("hello")
	theirs.Expect("ack")

	until(open(t, h.Instance, "chat"), "chat", "Say help") // it was offered after the foreign one
	if names := h.holders(id); len(names) != 0 {
		t.Errorf("the foreign session was had by %v", names)
	}
	ch := talk.Accept(t, talk.StartRuntime(t, h.env))
	if ch.ID != id {
		t.Errorf("the other runtime got %s, not %s", ch.ID, id)
	}
}
