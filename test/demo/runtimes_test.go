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

// fixture is a server with a demo team and a bot, without a runtime.
type fixture struct {
	*boot.Instance
	env    boot.Env
	demo   demo.Resources
	bot    *demo.Bot
	events *demo.Hub
}

func newFixture(t *testing.T, env boot.Env) *fixture {
	t.Helper()
	env = talk.WithDataDir(t, env)
	env["SESSION_RECONNECT_JITTER"] = "0s"
	h := &fixture{Instance: boot.StartDev(t, env, false), env: env, events: demo.NewHub()}
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

// background runs a function until the test ends or stop is called.
func background(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func (h *fixture) runtime(t *testing.T, name string) (stop func()) {
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

// holders returns the runtimes that claimed a session, in order.
func (h *fixture) holders(session string) (names []string) {
	for title := range strings.Lines(h.titles(session)) {
		if name, had := strings.CutSuffix(title, " claimed the call\n"); had {
			names = append(names, name)
		}
	}
	return names
}

// titles returns the titles of the demo's events, one per line.
func (h *fixture) titles(session string) (list string) {
	past, cancel := h.events.Subscribe(session, nil)
	defer cancel()
	for _, e := range past {
		list += e.Title + "\n"
	}
	return list
}

func TestRuntimesShareSessions(t *testing.T) {
	t.Parallel()
	h := newFixture(t, boot.Env{})
	h.runtime(t, "one")
	h.runtime(t, "two")
	had := map[string]int{}
	for n := 0; n < 8 || len(had) < 2; n++ {
		if n == 60 {
			t.Fatalf("one runtime claimed all of %d sessions: %v", n, had)
		}
		b := open(t, h.Instance, "chat")
		b.Chat("hello")
		if seen := show(until(b, "chat", "How are you?")); strings.Count(seen, "demo bot") != 1 {
			t.Errorf("want one greeting: %s", seen)
		}
		if names := h.holders(b.Session); len(names) != 1 {
			t.Errorf("session claimed by %v", names)
		} else {
			had[names[0]]++
		}
	}
}

func TestRuntimeContinuesCallOfAnother(t *testing.T) {
	t.Parallel()
	h := newFixture(t, boot.Env{"SESSION_PING_INTERVAL": "1s"})
	stop := h.runtime(t, "first")
	b := open(t, h.Instance, "chat")
	b.Chat("call me slowly")
	until(b, "chat", "# submits")
	stop()
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"1"}`) // while no runtime is running
	h.runtime(t, "second")
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"2"}`)
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"#"}`)
	if seen := show(until(b, "chat", "You pressed")); !strings.Contains(seen, "You pressed 1 2.") || strings.Contains(seen, "Say help") {
		t.Errorf("call did not continue: %s", seen)
	}
	if got := fmt.Sprint(h.holders(b.Session)); got != "[first second]" {
		t.Errorf("claimed by %s", got)
	}
}

func TestSessionsOfOtherTeamsAreNotClaimed(t *testing.T) {
	t.Parallel()
	h := newFixture(t, boot.Env{})
	h.runtime(t, "demo")
	admin, name := h.App.Admin(), "other"
	other, err := admin.Teams.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := admin.Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: other.ID, Name: name, Modes: endpoint.Modes})
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := admin.Keys.Create(t.Context(), other.ID, "", []auth.Scope{auth.CreateCallToken}, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	id, token := talk.Issue(t, h.Instance, key.Reveal(), map[string]any{"endpointId": ep.ID, "mode": "chat"})
	theirs := talk.Connect(t, h.Instance, id, token, "")
	theirs.Expect("ready")
	theirs.Chat("hello")
	theirs.Expect("ack")

	until(open(t, h.Instance, "chat"), "chat", "Say help") // offered after the session of the other team
	if names := h.holders(id); len(names) != 0 {
		t.Errorf("session of the other team claimed by %v", names)
	}
	ch := talk.Accept(t, talk.StartRuntime(t, h.env))
	if ch.ID != id {
		t.Errorf("other runtime got %s, want %s", ch.ID, id)
	}
}
