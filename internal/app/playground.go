package app

import (
	"sync"

	"telapi/callruntime"
	"telapi/internal/config"
	"telapi/internal/httpapi"
	"telapi/web"
)

// openPlayground is nil where there is none to be served.
func (a *App) openPlayground() *httpapi.Playground {
	if !a.cfg.Playground {
		return nil
	}
	a.guide.Store(&httpapi.Guide{Endpoints: []httpapi.GuideEndpoint{}, Phrases: []httpapi.Phrase{}})
	p := &httpapi.Playground{
		Files:    web.Playground(),
		Docs:     web.Docs(),
		Guide:    func() httpapi.Guide { return *a.guide.Load() },
		Onlooker: func() (*callruntime.Runtime, error) { return a.onlooker.open(a.cfg) },
	}
	if a.demo != nil {
		p.Events = a.demo.events
	}
	return p
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
