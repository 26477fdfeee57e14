package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"telapi/internal/demo"
	"telapi/internal/httpapi"
	"telapi/internal/timeline"
)

const (
	demoReady   = 30 * time.Second // for the stores
	demoTimeout = 30 * time.Second // for one request of the demo's
)

// demonstration is what a development server has for a newcomer.
type demonstration struct {
	lively bool // with a runtime and a bot
	events *timeline.Hub
	seeded chan struct{} // closed when the following are known
	demo   demo.Demo
	err    error
}

func newDemonstration(lively bool) *demonstration {
	return &demonstration{lively: lively, events: timeline.NewHub(), seeded: make(chan struct{})}
}

// Demo waits for the demo team of a development server. The server has to run.
func (a *App) Demo(ctx context.Context) (demo.Demo, error) {
	select {
	case <-a.demo.seeded:
		return a.demo.demo, a.demo.err
	case <-ctx.Done():
		return demo.Demo{}, ctx.Err()
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
	office := a.Office()
	seeded, err := demo.Seed(ctx, a.cfg.DataDir, office.Teams, office.Endpoints, office.Keys)
	if err != nil {
		return nil, err
	}
	e, err := office.Endpoints.Show(ctx, seeded.EndpointID)
	if err != nil {
		return nil, err
	}
	a.demo.demo = seeded
	guide := &httpapi.Guide{
		APIKey: seeded.Key.Reveal(), TeamID: seeded.TeamID, Phrases: []httpapi.Phrase{},
		Endpoints: []httpapi.GuideEndpoint{{ID: e.ID, Name: e.Name, Modes: e.Modes}},
	}
	defer func() { a.guide.Store(guide) }()
	if !a.demo.lively {
		return func() {}, nil
	}
	for _, p := range demo.Phrases() {
		guide.Phrases = append(guide.Phrases, httpapi.Phrase(p))
	}
	return a.openDemo(ctx, seeded)
}

// openDemo opens the demo's runtime and bot, who meet the server as they would
// one on another machine.
func (a *App) openDemo(ctx context.Context, seeded demo.Demo) (run func(), err error) {
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
