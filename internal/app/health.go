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

// States of a dependency in /health.
const (
	checkOK          = "ok"
	checkDegraded    = "degraded"
	checkUnavailable = "unavailable"
	checkDisabled    = "disabled"
)

const (
	probeInterval = time.Second
	retryInterval = 100 * time.Millisecond // while a dependency is unavailable
	probeTimeout  = 2 * time.Second
)

// probe checks one dependency in the background, so that /health never waits for it.
type probe struct {
	name   string
	label  string // in log messages
	failed string // state in /health when it is unavailable
	ping   func(context.Context) error
	ok     atomic.Bool
}

// run probes until ctx ends and logs when the dependency becomes unavailable or available again.
func (p *probe) run(ctx context.Context, log *slog.Logger) {
	for seen := false; ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.ping(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		next := probeInterval
		switch was := p.ok.Swap(err == nil); {
		case err == nil && !was && seen:
			log.InfoContext(ctx, p.label+" is available again")
		case err != nil && was:
			log.WarnContext(ctx, p.label+" is unavailable", "error", err)
		}
		if seen = seen || err == nil; err != nil {
			next = retryInterval
		}
		_ = sleep.For(ctx, next)
	}
}

// addProbe adds a dependency to /health.
func (a *App) addProbe(name, label, failed string, ping func(context.Context) error) {
	p := &probe{name: name, label: label, failed: failed, ping: ping}
	a.probes = append(a.probes, p)
	a.jobs = append(a.jobs, func(ctx context.Context) { p.run(ctx, a.log) })
}

// Health returns the response of /health.
func (a *App) Health() httpapi.Health {
	h := httpapi.Health{
		Status:        httpapi.Healthy,
		Version:       a.version,
		UptimeSeconds: int64(time.Since(a.started).Seconds()),
		Checks:        map[string]string{"database": checkDisabled, "kv": checkDisabled, "media": checkDisabled},
	}
	for _, p := range a.probes {
		h.Checks[p.name] = p.failed
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

// Ready waits until the instance is healthy.
func (a *App) Ready(ctx context.Context) error {
	for a.Health().Status != httpapi.Healthy {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("not ready (%v): %w", a.Health().Checks, err)
		}
		_ = sleep.For(ctx, 20*time.Millisecond)
	}
	return nil
}
