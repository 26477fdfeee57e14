package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/config"
	"telapi/internal/httpapi"
	"telapi/internal/sleep"
	"telapi/internal/telemetry"
)

// closers are functions that close calls in reverse order.
type closers []func()

func (c *closers) onClose(f func()) { *c = append(*c, f) }

func (c *closers) close() {
	for _, f := range slices.Backward(*c) {
		f()
	}
}

// process is the common part of the API server and the media service: a port,
// telemetry, background jobs and graceful shutdown.
type process struct {
	closers
	cfg       config.Config
	telemetry *telemetry.Telemetry
	log       *slog.Logger
	listener  net.Listener
	jobs      []func(context.Context)
}

// startTelemetry starts logging, metrics and tracing, and logs opts.Warnings. The
// caller listens first, so that a port in use is reported without other log lines.
func (p *process) startTelemetry(ctx context.Context, opts Options) (err error) {
	p.telemetry, err = telemetry.New(ctx, telemetry.Options{
		Level:        p.cfg.LogLevel,
		Format:       p.cfg.LogFormat,
		Writer:       opts.Log,
		Color:        p.cfg.Color,
		Export:       p.cfg.OTelEnabled,
		Endpoints:    telemetry.Endpoints(p.cfg.OTLP()),
		MSISDNDigits: p.cfg.MSISDNUnmaskedDigits,
		Version:      opts.Version,
	})
	if err != nil {
		return fmt.Errorf("start telemetry: %w", err)
	}
	p.log = p.telemetry.Logger
	p.onClose(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), telemetryTimeout)
		defer cancel()
		if err := p.telemetry.Shutdown(ctx); err != nil {
			p.log.WarnContext(ctx, "could not flush telemetry", "error", err)
		}
	})
	for _, w := range opts.Warnings {
		p.log.WarnContext(ctx, w.String(), "name", w.Name)
	}
	return nil
}

func (p *process) address() *net.TCPAddr { return p.listener.Addr().(*net.TCPAddr) }

// serve runs the jobs and accept until ctx ends. Then it calls drain, after which
// /health returns 503 and load balancers stop sending requests. After DRAIN_DELAY it
// calls shutdown, which closes the port and waits for running requests. The jobs end
// last, because requests need them. When serve returns, the jobs and accept have
// ended.
func (p *process) serve(ctx context.Context, accept func() error, drain func(), shutdown func(context.Context) error) error {
	jobCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var jobs sync.WaitGroup
	for _, job := range p.jobs {
		jobs.Go(func() { job(jobCtx) })
	}
	defer jobs.Wait()
	defer stop()
	accepted := make(chan error, 1) // the result of accept
	go func() { accepted <- accept() }()
	select {
	case err := <-accepted:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drainCtx, cancel := context.WithTimeout(jobCtx, p.cfg.ShutdownTimeout)
	defer cancel()
	drain()
	delay := min(p.cfg.DrainDelay, p.cfg.ShutdownTimeout/2)
	p.log.InfoContext(drainCtx, "draining", "delay", delay, "deadline", p.cfg.ShutdownTimeout)
	_ = sleep.For(drainCtx, delay)
	err := shutdown(drainCtx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.log.WarnContext(drainCtx, "requests aborted: SHUTDOWN_TIMEOUT exceeded", "timeout", p.cfg.ShutdownTimeout)
	case err != nil:
		return err
	default:
		p.log.InfoContext(drainCtx, "drained")
	}
	<-accepted
	return nil
}

const (
	telemetryTimeout = 5 * time.Second // for the last flush of telemetry
	releaseInterval  = 10 * time.Second
	minGrowth        = 32 << 20 // of the heap between two garbage collections
	memoryReserve    = 64 << 20 // added to the memory limit of the media service
)

// releaseMemory returns unused memory to the operating system after an interval
// without a garbage collection. An instance with many idle sockets allocates little,
// so it would keep the memory of a burst of new sockets for a long time.
func releaseMemory(ctx context.Context, interval time.Duration) {
	collections := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	for previous := uint64(0); sleep.For(ctx, interval) == nil; {
		metrics.Read(collections)
		current := collections[0].Value.Uint64()
		if current == previous {
			debug.FreeOSMemory()
		}
		previous = current // FreeOSMemory also collects: nothing is released after the next interval
	}
}

// collectLessOften lets the heap grow by minGrowth, or to twice its size if that is more,
// before the next garbage collection. The heap of an instance with few sockets is so small
// that it would double 30 times a second while the instance is busy, and collecting would
// take a tenth of its CPU time. If GOGC is set, collectLessOften does nothing.
func collectLessOften(ctx context.Context) {
	const doubled = 100 // percent, Go's default
	if set := debug.SetGCPercent(doubled); set != doubled {
		debug.SetGCPercent(set)
		return
	}
	// The collector scans all of these and counts them as the size of the heap.
	scanned := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	type marker struct{ _ *int }
	var adjust func(*marker) // after every collection, as the finalizer of an unused object
	adjust = func(m *marker) {
		if ctx.Err() != nil {
			return
		}
		metrics.Read(scanned)
		size := uint64(1)
		for _, s := range scanned {
			size += s.Value.Uint64()
		}
		debug.SetGCPercent(int(max(doubled, 100*minGrowth/size))) //nolint:gosec // at most 100 * minGrowth
		runtime.SetFinalizer(m, adjust)
	}
	adjust(&marker{})
}

// limitMemory sets a memory limit, so that the heap does not grow to twice the size
// of the cached files before garbage is collected. It adjusts the limit to the memory
// in use, because with a lower limit the collector would run all the time. If
// GOMEMLIMIT is set, limitMemory does nothing.
func (m *Media) limitMemory(ctx context.Context) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	for limit := int64(0); ; {
		metrics.Read(used)
		needed := max(int64(m.cfg.MediaMemoryBytes), int64(used[0].Value.Uint64()+used[1].Value.Uint64())) //nolint:gosec // memory sizes fit into int64
		if next := needed + needed/4 + memoryReserve; next != limit {
			limit = next
			debug.SetMemoryLimit(limit)
		}
		if sleep.For(ctx, time.Second) != nil {
			return
		}
	}
}

// Statuses of a dependency in /health.
const (
	statusOK          = "ok"
	statusDegraded    = "degraded"
	statusUnavailable = "unavailable"
	statusDisabled    = "disabled"
)

const (
	probeInterval = time.Second
	retryInterval = 100 * time.Millisecond // while a dependency is unavailable
	probeTimeout  = 2 * time.Second
)

// probe checks one dependency in the background, so that /health never waits for it.
type probe struct {
	name         string // in /health
	label        string // in log messages
	failedStatus string // in /health, while ping fails
	ping         func(context.Context) error
	ok           atomic.Bool
	up           prometheus.Gauge // 1 if ok
}

// run probes until ctx ends and logs when the dependency becomes unavailable or available again.
func (p *probe) run(ctx context.Context, log *slog.Logger) {
	for everOK := false; ctx.Err() == nil; {
		pingCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := p.ping(pingCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch wasOK := p.ok.Swap(err == nil); {
		case err == nil && !wasOK && everOK:
			log.InfoContext(ctx, p.label+" is available again")
		case err != nil && wasOK:
			log.WarnContext(ctx, p.label+" is unavailable", "error", err)
		}
		interval, up := retryInterval, 0.0
		if err == nil {
			interval, everOK, up = probeInterval, true, 1
		}
		p.up.Set(up)
		_ = sleep.For(ctx, interval)
	}
}

// addFullGauge adds a metric that is 1 while the key-value store is full.
func (a *App) addFullGauge(isFull func() bool) {
	promauto.With(a.telemetry.Registry).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "telapi_kv_full", Help: "1 if the key-value store has just refused a write because it has no memory left, 0 otherwise."},
		func() float64 {
			if isFull() {
				return 1
			}
			return 0
		})
}

// addProbes adds dependencies to /health and to the metrics.
func (a *App) addProbes(probes ...*probe) {
	up := promauto.With(a.telemetry.Registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "telapi_dependency_up", Help: "1 if the dependency (database, kv or media) answered the last probe, 0 otherwise."}, []string{"dependency"})
	for _, p := range probes {
		p.up = up.WithLabelValues(p.name)
		a.probes = append(a.probes, p)
		a.jobs = append(a.jobs, func(ctx context.Context) { p.run(ctx, a.log) })
	}
}

// Health returns the response of /health.
func (a *App) Health() httpapi.Health {
	h := httpapi.Health{
		Status:        httpapi.Healthy,
		Version:       a.version,
		UptimeSeconds: int64(time.Since(a.started).Seconds()),
		Checks:        map[string]string{"database": statusDisabled, "kv": statusDisabled, "media": statusDisabled},
	}
	for _, p := range a.probes {
		h.Checks[p.name] = p.failedStatus
		if p.ok.Load() {
			h.Checks[p.name] = statusOK
		}
	}
	switch {
	case a.draining.Load():
		h.Status = "draining"
	case h.Checks["kv"] != statusOK,
		a.cfg.FeatureAPIAccess && h.Checks["database"] != statusOK:
		h.Status = statusUnavailable
	}
	return h
}
