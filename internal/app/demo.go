package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/calls"
	"telapi/internal/demo"
	"telapi/internal/fault"
	"telapi/internal/httpapi"
	"telapi/web"
)

const (
	demoStoreTimeout   = 30 * time.Second
	demoRequestTimeout = 30 * time.Second
	readyInterval      = 20 * time.Millisecond // between checks of the stores
	playgroundItemTTL  = time.Minute           // the page sends its callback at once, or the user pastes it
	fromOldest         = ""                    // position of an observer that does not read
)

// demoState is the demo of a development server.
type demoState struct {
	*Demo
	events  *demo.Hub
	ctx     context.Context // ends when stop is called
	cancel  context.CancelFunc
	stopped chan struct{} // closed when runDemo has returned
	ready   chan struct{} // closed when the following fields are set

	resources        demo.Resources
	playgroundConfig httpapi.PlaygroundConfig
	err              error
}

func newDemoState(ctx context.Context, options *Demo) *demoState {
	d := &demoState{Demo: options, events: demo.NewHub(), stopped: make(chan struct{}), ready: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return d
}

// Demo waits for the demo team of a running development server.
func (a *App) Demo(ctx context.Context) (demo.Resources, error) {
	select {
	case <-a.demo.ready:
		return a.demo.resources, a.demo.err
	case <-ctx.Done():
		return demo.Resources{}, ctx.Err()
	}
}

// stop stops the demo. Its runtime releases its calls while the server still serves.
func (d *demoState) stop() {
	d.cancel()
	<-d.stopped
}

// runDemo creates the demo team and runs its runtime and bot until the demo is stopped, or
// until ctx ends because the server has failed.
func (a *App) runDemo(ctx context.Context) {
	defer close(a.demo.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(a.demo.ctx, cancel)
	defer stop()
	run, err := a.prepareDemo(ctx)
	if err != nil {
		a.demo.err = fmt.Errorf("prepare demo: %w", err)
	}
	close(a.demo.ready)
	if run != nil {
		run(ctx)
	}
}

// WaitForStores waits until a running server is healthy and its database is ready.
// Without FEATURE_API_ACCESS, the health does not depend on the database.
func (a *App) WaitForStores(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoStoreTimeout)
	defer cancel()
	for a.Health().Status != httpapi.Healthy || a.stores.sql.Ready(ctx) != nil {
		if err := background.Sleep(ctx, readyInterval); err != nil {
			return fmt.Errorf("wait for stores (%v): %w", a.Health().Checks, err)
		}
	}
	return nil
}

// prepareDemo waits for the stores, creates the demo's resources, starts the instances and opens
// the demo's runtime and bot. It returns a function that runs these two, or nil without a bot.
func (a *App) prepareDemo(ctx context.Context) (run func(context.Context), err error) {
	if err := a.WaitForStores(ctx); err != nil {
		return nil, err
	}
	admin := a.Admin()
	resources, err := demo.Seed(ctx, a.cfg.DataDir, admin.Teams, admin.Endpoints, admin.Keys)
	if err != nil {
		return nil, err
	}
	ep, err := admin.Endpoints.Store.Endpoint(ctx, resources.EndpointID)
	if err != nil {
		return nil, err
	}
	a.demo.resources = resources
	a.demo.playgroundConfig = httpapi.PlaygroundConfig{
		APIKey: resources.Key.Reveal(), TeamID: resources.TeamID,
		Endpoints:       []httpapi.PlaygroundEndpoint{{ID: ep.ID, Name: ep.Name}},
		SpeechProviders: a.cfg.SpeechProviders,
	}
	if a.instances != nil {
		a.demo.playgroundConfig.Instances = len(a.instances.all)
		for n := range a.instances.all {
			if err := a.instances.Start(ctx, n+1); err != nil {
				return nil, err
			}
		}
	}
	if a.demo.Bot == nil {
		return nil, nil
	}
	return a.openRuntimeAndBot(resources)
}

// openRuntimeAndBot opens the demo's runtime and bot and returns a function that runs and
// closes them. They use the server only through its public interfaces.
func (a *App) openRuntimeAndBot(resources demo.Resources) (run func(context.Context), err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the client only connects to this machine, over loopback
	transport.TLSClientConfig = insecure
	client := &http.Client{Transport: transport, Timeout: demoRequestTimeout}
	pageConfig := &a.demo.playgroundConfig
	pageConfig.BotURL, pageConfig.OwnBot = a.demo.Bot.URL, a.demo.Bot.URL != ""
	var bot *demo.Bot // nil if the user has a bot
	if !pageConfig.OwnBot {
		bot, err = demo.NewBot(a.URL(), client, demo.NewModel("DEMO_LLM_URL", a.cfg.DemoLLMURL, a.cfg.DemoLLMModel, a.cfg.DemoLLMKey), a.demo.events, a.log)
		if err != nil {
			return nil, err
		}
		pageConfig.BotURL = bot.URL()
		for _, p := range demo.Phrases() {
			pageConfig.Phrases = append(pageConfig.Phrases, httpapi.Phrase{Say: p.Say, Does: p.Does})
		}
	}
	runtime, err := demo.NewRuntime(demo.RuntimeOptions{
		Name: fmt.Sprintf("demo-%s-%d", host, a.Address().Port), Demo: resources, API: a.URL(), TLS: insecure, Bot: pageConfig.BotURL, OwnBot: pageConfig.OwnBot, Client: client,
		Recognizer: demo.NewModel("DEMO_STT_URL", a.cfg.DemoSTTURL, a.cfg.DemoSTTModel, a.cfg.DemoSTTKey), Events: a.demo.events, Log: a.log,
	})
	if err != nil {
		if bot != nil {
			bot.Close()
		}
		return nil, err
	}
	return func(ctx context.Context) {
		var running sync.WaitGroup
		if bot != nil {
			running.Go(func() { bot.Run(ctx) })
		}
		running.Go(func() { runtime.Run(ctx) })
		running.Wait()
		transport.CloseIdleConnections()
	}, nil
}

// playground returns the playground, or nil if PLAYGROUND_ENABLED is false.
func (a *App) playground() *httpapi.Playground {
	if !a.cfg.Playground {
		return nil
	}
	events, pageConfig := demo.NewHub(), func() httpapi.PlaygroundConfig { return httpapi.PlaygroundConfig{} }
	if a.demo != nil {
		events, pageConfig = a.demo.events, a.demo.currentConfig
	}
	feed := demo.Feed{Hub: events, Observer: a.runtimes.Runtime, Unclaimed: a.unclaimed}
	return &httpapi.Playground{
		Files: web.Playground(), Docs: web.Docs(), Config: pageConfig, Feed: feed.Open, ChannelTeam: a.channelTeam,
		IssueCredential: a.issueCredential, CancelWorkItem: a.cancelWorkItem,
	}
}

// currentConfig returns an empty configuration until the demo is ready.
func (d *demoState) currentConfig() httpapi.PlaygroundConfig {
	select {
	case <-d.ready:
		return d.playgroundConfig
	default:
		return httpapi.PlaygroundConfig{}
	}
}

// unclaimed reports whether the browser of a session waits for a runtime.
func (a *App) unclaimed(ctx context.Context, sessionID string) (bool, error) {
	channel, err := a.stores.kv.Channel(ctx, sessionID)
	return channel.Waiting(), err
}

// withRuntime calls f with the runtime that the connections of call runtimes share. public maps
// errors of f to those of the API. All others mean that the key-value store is unavailable.
func (a *App) withRuntime(public map[error]*fault.Error, f func(*calls.Runtime) error) error {
	runtime, err := a.runtimes.Runtime()
	if err == nil {
		err = f(runtime)
	}
	if err == nil {
		return nil
	}
	for internal, replacement := range public {
		if errors.Is(err, internal) {
			return replacement
		}
	}
	return fault.Unavailable("The key-value store", err)
}

// channelTeam returns the team of a channel.
func (a *App) channelTeam(ctx context.Context, channelID string) (team string, err error) {
	err = a.withRuntime(map[error]*fault.Error{calls.ErrNotFound: fault.New(fault.NotFound, "Channel not found.")}, func(r *calls.Runtime) error {
		team, err = r.Team(ctx, channelID)
		return err
	})
	return team, err
}

// issueCredential registers a work item on the channel of a session. Answers to later
// work items wait for it until it expires.
func (a *App) issueCredential(ctx context.Context, sessionID string, kind wire.WorkItemKind) (c httpapi.CallbackCredential, err error) {
	err = a.withRuntime(map[error]*fault.Error{
		calls.ErrNotFound: fault.New(fault.NotFound, "The session has not connected yet. Connect first."),
		calls.ErrEnded:    fault.New(fault.SessionEnded, "The session has ended. Connect to start another."),
	}, func(r *calls.Runtime) error {
		ch := r.Observe(sessionID, fromOldest)
		defer func() { _ = ch.Close(ctx) }() // cannot fail: an observer has no claim to release
		item, err := ch.Await(ctx, calls.AwaitOptions{Kind: kind, TTL: playgroundItemTTL})
		c = httpapi.CallbackCredential{Token: item.Token, Path: item.Path, ExpiresAt: item.ExpiresAt.UTC()}
		return err
	})
	return c, err
}

// cancelWorkItem cancels a work item, so that later answers need not wait for it.
func (a *App) cancelWorkItem(ctx context.Context, sessionID, workItemID string) error {
	closed := fault.New(fault.NotFound, "The work item is not open: it was answered, cancelled or has expired.")
	return a.withRuntime(map[error]*fault.Error{calls.ErrNotFound: closed, calls.ErrEnded: closed, calls.ErrWorkItemNotFound: closed}, func(r *calls.Runtime) error {
		ch := r.Observe(sessionID, fromOldest)
		defer func() { _ = ch.Close(ctx) }() // cannot fail: an observer has no claim to release
		return ch.Cancel(ctx, workItemID)
	})
}
