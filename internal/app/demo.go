package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"telapi/callruntime"
	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/httpapi"
	"telapi/internal/sleep"
	"telapi/web"
)

const (
	demoReady   = 30 * time.Second // for the stores
	demoTimeout = 30 * time.Second // for one request of the demo's
)

// demonstration is what a development server has for a newcomer.
type demonstration struct {
	lively bool // with a runtime and a bot
	events *demo.Hub
	seeded chan struct{} // closed when the following are known
	demo   demo.Resources
	guide  httpapi.Guide
	err    error
}

// Demo waits for the demo team of a development server. The server has to run.
func (a *App) Demo(ctx context.Context) (demo.Resources, error) {
	select {
	case <-a.demo.seeded:
		return a.demo.demo, a.demo.err
	case <-ctx.Done():
		return demo.Resources{}, ctx.Err()
	}
}

// runDemo seeds the demo team and runs its runtime and bot until ctx ends.
func (a *App) runDemo(ctx context.Context) {
	d := a.demo
	run, err := a.prepareDemo(ctx)
	if err != nil && ctx.Err() == nil {
		d.err = fmt.Errorf("prepare the demo: %w", err)
	}
	close(d.seeded)
	if err == nil {
		run()
	}
}

func (a *App) prepareDemo(ctx context.Context) (run func(), err error) {
	ready, cancel := context.WithTimeout(ctx, demoReady)
	defer cancel()
	if err := a.Ready(ready); err != nil {
		return nil, fmt.Errorf("wait for the stores: %w", err)
	}
	for a.stores.sql.Ready(ready) != nil { // Ready above ignores the database if FEATURE_API_ACCESS is false
		if err := sleep.For(ready, 20*time.Millisecond); err != nil {
			return nil, fmt.Errorf("wait for the database: %w", err)
		}
	}
	admin := a.Admin()
	seeded, err := demo.Seed(ctx, a.cfg.DataDir, admin.Teams, admin.Endpoints, admin.Keys)
	if err != nil {
		return nil, err
	}
	e, err := admin.Endpoints.Store.Endpoint(ctx, seeded.EndpointID)
	if err != nil {
		return nil, err
	}
	a.demo.demo = seeded
	a.demo.guide = httpapi.Guide{
		APIKey: seeded.Key.Reveal(), TeamID: seeded.TeamID,
		Endpoints: []httpapi.GuideEndpoint{{ID: e.ID, Name: e.Name, Modes: e.Modes}},
	}
	if !a.demo.lively {
		return func() {}, nil
	}
	for _, p := range demo.Phrases() {
		a.demo.guide.Phrases = append(a.demo.guide.Phrases, httpapi.Phrase(p))
	}
	return a.openDemo(ctx, seeded)
}

// openDemo opens the demo's runtime and bot, who meet the server as they would
// one on another machine.
func (a *App) openDemo(ctx context.Context, seeded demo.Resources) (run func(), err error) {
	store, err := runtimeStore(a.cfg)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // it is this process, over loopback
	client := &http.Client{Transport: transport, Timeout: demoTimeout}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	bot, err := demo.NewBot(a.URL(), client, a.demo.events, a.log)
	if err != nil {
		return nil, err
	}
	runtime, err := demo.NewRuntime(demo.RuntimeOptions{
		Name: fmt.Sprintf("demo-%s-%d", host, a.address().Port), Store: store, Demo: seeded, API: a.URL(), Bot: bot.URL(), Client: client,
		Events: a.demo.events, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	return func() {
		var both sync.WaitGroup
		both.Go(func() { bot.Run(ctx) })
		both.Go(func() { runtime.Run(ctx) })
		both.Wait()
		transport.CloseIdleConnections()
	}, nil
}

// openPlayground is nil where there is none to be served.
func (a *App) openPlayground() *httpapi.Playground {
	if !a.cfg.Playground {
		return nil
	}
	p := &httpapi.Playground{
		Files: web.Playground(),
		Docs:  web.Docs(),
		Guide: func() httpapi.Guide { return httpapi.Guide{} },
	}
	feed := demo.Feed{Observer: func() (*callruntime.Runtime, error) { return a.onlooker.open(a.cfg) }}
	if a.demo != nil {
		feed.Hub, p.Guide = a.demo.events, a.demo.tell
	}
	p.Feed = feed.Open
	return p
}

// tell is the guide to the demo once there is one.
func (d *demonstration) tell() (guide httpapi.Guide) {
	select {
	case <-d.seeded:
		guide = d.guide
	default:
	}
	return guide
}

// onlooker is the access to channels of those who look on. It is opened when
// the first of them comes: a store that is away must not keep the server from
// starting.
type onlooker struct {
	mu      sync.Mutex
	runtime *callruntime.Runtime
}

func (o *onlooker) open(cfg config.Config) (_ *callruntime.Runtime, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runtime == nil {
		o.runtime, err = OpenRuntime(cfg)
	}
	return o.runtime, err
}

func (o *onlooker) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runtime != nil {
		o.runtime.Close()
	}
}
