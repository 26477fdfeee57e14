package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"telapi/internal/httpapi"
	"telapi/internal/sleep"
)

// What /health says of one dependency.
const (
	checkOK          = "ok"
	checkDegraded    = "degraded"
	checkUnavailable = "unavailable"
	checkDisabled    = "disabled"
)

const (
	probeEvery   = time.Second
	probeLost    = 100 * time.Millisecond // while it is away: to be back soon
	probeTimeout = 2 * time.Second
)

// probe watches one dependency in the background, so that /health answers at
// once however slow the dependency is, and however often it is asked.
type probe struct {
	name string
	what string // in words, for the log
	lost string // what /health says when it is away
	ping func(context.Context) error
	ok   atomic.Bool
}

// run probes until ctx ends, and logs when the dependency goes or comes back.
func (p *probe) run(ctx context.Context, log *slog.Logger) {
	for known := false; ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.ping(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		next := probeEvery
		switch was := p.ok.Swap(err == nil); {
		case err == nil && !was && known:
			log.InfoContext(ctx, p.what+" is back")
		case err != nil && was:
			log.WarnContext(ctx, p.what+" is away", "error", err)
		}
		if known = known || err == nil; err != nil {
			next = probeLost
		}
		_ = sleep.For(ctx, next)
	}
}

// watch adds a dependency to /health.
func (a *App) watch(name, what, lost string, ping func(context.Context) error) {
	p := &probe{name: name, what: what, lost: lost, ping: ping}
	a.probes = append(a.probes, p)
	a.jobs = append(a.jobs, func(ctx context.Context) { p.run(ctx, a.log) })
}

// Health is what /health answers.
func (a *App) Health() httpapi.Health {
	h := httpapi.Health{
		Status:        httpapi.Healthy,
		Version:       a.version,
		UptimeSeconds: int64(time.Since(a.started).Seconds()),
		Checks:        map[string]string{"database": checkDisabled, "kv": checkDisabled, "media": checkDisabled},
	}
	for _, p := range a.probes {
		h.Checks[p.name] = p.lost
		if p.ok.Load() {
			h.Checks[p.name] = checkOK
		}
	}
	switch {
	case a.draining.Load():
		h.Status = "draining"
	case h.Checks["kv"] != checkOK,
		a.cfg.FeatureAPIAccess && h.Checks["database"] != checkOK:
		h.Status = checkUnavailable
	}
	return h
}

// Ready waits until the instance may be sent traffic.
func (a *App) Ready(ctx context.Context) error {
	for a.Health().Status != httpapi.Healthy {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("not ready (%v): %w", a.Health().Checks, err)
		}
		_ = sleep.For(ctx, 20*time.Millisecond)
	}
	return nil
}
