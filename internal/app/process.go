package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"telapi/internal/background"
	"telapi/internal/config"
	"telapi/internal/telemetry"
)

const telemetryTimeout = 5 * time.Second // for the last flush of telemetry

// closers release what was opened, the newest first.
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

func (p *process) addJobs(jobs ...func(context.Context)) { p.jobs = append(p.jobs, jobs...) }

// startTelemetry starts logging, metrics and tracing, and logs opts.Warnings. The
// caller listens first, so that a port in use is reported without other log lines.
func (p *process) startTelemetry(ctx context.Context, opts Options) (err error) {
	p.telemetry, err = telemetry.New(ctx, p.cfg, opts.Version, opts.Log)
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

// Address returns the address at which the process listens.
func (p *process) Address() *net.TCPAddr { return p.listener.Addr().(*net.TCPAddr) }

// serve runs the jobs and handleRequests until ctx ends. Then it calls drain, after which
// /health returns 503 and load balancers stop sending requests. After DRAIN_DELAY, or half
// of SHUTDOWN_TIMEOUT if that is shorter, it calls shutdown, which closes the port and waits
// for running requests. The jobs end last, because requests need them. When serve returns,
// the jobs and handleRequests have ended.
func (p *process) serve(ctx context.Context, handleRequests func() error, drain func(), shutdown func(context.Context) error) error {
	jobCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var jobs sync.WaitGroup
	for _, job := range p.jobs {
		jobs.Go(func() { job(jobCtx) })
	}
	defer jobs.Wait()
	defer stop()
	handled := make(chan error, 1)
	go func() { handled <- handleRequests() }()
	select {
	case err := <-handled:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drainCtx, cancel := context.WithTimeout(jobCtx, p.cfg.ShutdownTimeout)
	defer cancel()
	drain()
	delay := min(p.cfg.DrainDelay, p.cfg.ShutdownTimeout/2)
	p.log.InfoContext(drainCtx, "draining", "delay", delay, "deadline", p.cfg.ShutdownTimeout)
	_ = background.Sleep(drainCtx, delay)
	err := shutdown(drainCtx)
	<-handled
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.log.WarnContext(drainCtx, "requests aborted: SHUTDOWN_TIMEOUT exceeded", "timeout", p.cfg.ShutdownTimeout)
	case err != nil:
		return err
	default:
		p.log.InfoContext(drainCtx, "drained")
	}
	return nil
}
