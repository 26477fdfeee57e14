package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"telapi/internal/demo"
	"telapi/test/harness"
)

// fixture is a server with a demo team and a bot, without a runtime.
type fixture struct {
	*harness.Instance
	env    harness.Env
	demo   demo.Resources
	bot    *demo.Bot
	events *demo.Hub
}

func newFixture(t *testing.T, env harness.Env) *fixture {
	t.Helper()
	env = harness.WithDataDir(t, env)
	env["SESSION_RECONNECT_JITTER"] = "0s"
	f := &fixture{Instance: harness.StartDev(t, env, false), env: env, events: demo.NewHub()}
	var err error
	if f.demo, err = f.App.Demo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.bot, err = demo.NewBot(f.URL, http.DefaultClient, nil, f.events, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	runInBackground(t, f.bot.Run)
	return f
}

// runInBackground runs a function until the test ends or stop is called.
func runInBackground(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// startRuntime starts a demo runtime that asks the demo bot.
func (f *fixture) startRuntime(t *testing.T, name string) (stop func()) {
	t.Helper()
	return f.startRuntimeOf(t, name, f.bot.URL())
}

func (f *fixture) startRuntimeOf(t *testing.T, name, bot string) (stop func()) {
	t.Helper()
	r, err := demo.NewRuntime(demo.RuntimeOptions{
		Name: name, Demo: f.demo, API: f.URL, Bot: bot, Client: http.DefaultClient, Events: f.events, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return runInBackground(t, r.Run)
}

// claimants returns the runtimes that claimed a session, in order.
func (f *fixture) claimants(session string) (names []string) {
	for title := range strings.Lines(f.titles(session)) {
		if name, found := strings.CutSuffix(title, " claimed the call\n"); found {
			names = append(names, name)
		}
	}
	return names
}

// titles returns the titles of the session's events, one per line.
func (f *fixture) titles(session string) (list string) {
	past, cancel := f.events.Subscribe(session, nil)
	defer cancel()
	for _, e := range past {
		list += e.Title + "\n"
	}
	return list
}

func TestRuntimesShareSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{})
	f.startRuntime(t, "one")
	f.startRuntime(t, "two")
	claims := map[string]int{} // by runtime
	for n := 0; n < 8 || len(claims) < 2; n++ {
		if n == 60 {
			t.Fatalf("one runtime claimed all of %d sessions: %v", n, claims)
		}
		b := connect(t, f.Instance, "chat")
		b.Chat("hello")
		if seen := show(readUntil(b, "chat", "How are you?")); strings.Count(seen, "demo bot") != 1 {
			t.Errorf("want one greeting: %s", seen)
		}
		if names := f.claimants(b.Session); len(names) != 1 {
			t.Errorf("session was claimed by %v, want one runtime", names)
		} else {
			claims[names[0]]++
		}
	}
}

func TestRuntimeContinuesCallOfAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{})
	stop := f.startRuntime(t, "first")
	b := connect(t, f.Instance, "chat")
	b.Chat("call me slowly")
	readUntil(b, "chat", "# submits")
	stop()
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"1"}`) // while no runtime is running
	f.startRuntime(t, "second")
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"2"}`)
	b.Send("browser_action", "browserAction", `{"type":"dtmf","digit":"#"}`)
	if seen := show(readUntil(b, "chat", "You pressed")); !strings.Contains(seen, "You pressed 1 2.") || strings.Contains(seen, "Say help") {
		t.Errorf("want \"You pressed 1 2.\" without a new greeting: %s", seen)
	}
	if got := fmt.Sprint(f.claimants(b.Session)); got != "[first second]" {
		t.Errorf("session was claimed by %s, want [first second]", got)
	}
}

func TestQuestionOfStoppedRuntimeIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{})
	asked := make(chan struct{}, 9)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		asked <- struct{}{}
	}))
	t.Cleanup(silent.Close)
	stop := f.startRuntimeOf(t, "first", silent.URL)
	b := connect(t, f.Instance, "chat")
	b.Chat("out of order")
	<-asked
	stop()
	f.startRuntime(t, "second")
	seen := show(readUntil(b, "chat", "the second answer"))
	b.Chat("hello")
	seen += show(readUntil(b, "chat", "How are you?"))
	for _, text := range []string{"Say help", "the first answer", "the second answer"} {
		if strings.Count(seen, text) != 1 {
			t.Errorf("want %q once: %s", text, seen)
		}
	}
}

// The answers reach the browser once, although both runtimes ask for them.
func TestAnswersArriveOnceAfterTakeover(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{})
	stop := f.startRuntime(t, "first")
	b := connect(t, f.Instance, "chat")
	b.Chat("call me slowly") // changes settings: entries are not committed from now on
	readUntil(b, "chat", "# submits")
	b.Chat("who are you")
	seen := show(readUntil(b, "chat", "A demo bot"))
	b.Chat("out of order")
	f.waitForTitle(t, b.Session, "request to bot, part 2", 1)
	stop()
	f.startRuntime(t, "second")
	b.Chat("bye")
	seen += show(readUntil(b, "chat", "Say hang up"))
	for _, text := range []string{"A demo bot", "the first answer", "the second answer", "Goodbye"} {
		if strings.Count(seen, text) != 1 {
			t.Errorf("want %q once: %s", text, seen)
		}
	}
}

func TestSessionsOfOtherTeamsAreNotClaimed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{})
	f.startRuntime(t, "demo")
	other := harness.NewTenant(t, f.Instance, "other")
	id, token := harness.Issue(t, f.Instance, other.Key, map[string]any{"endpointId": other.Endpoint.ID, "mode": "chat"})
	b := harness.Connect(t, f.Instance, id, token, "")
	b.Expect("ready")
	b.Chat("hello")
	b.Expect("ack")

	readUntil(connect(t, f.Instance, "chat"), "chat", "Say help") // offered after the session of the other team
	if names := f.claimants(id); len(names) != 0 {
		t.Errorf("session of the other team was claimed by %v, want no demo runtime", names)
	}
	ch := harness.Accept(t, harness.StartRuntime(t, f.env))
	if ch.ID != id {
		t.Errorf("other runtime got %s, want %s", ch.ID, id)
	}
}
