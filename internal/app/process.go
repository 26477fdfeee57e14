package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"telapi/internal/config"
	"telapi/internal/sleep"
	"telapi/internal/telemetry"
)

// closers are functions that close runs in reverse order.
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
	cfg      config.Config
	tele     *telemetry.Telemetry
	log      *slog.Logger
	listener net.Listener
	jobs     []func(context.Context)
}

// start starts telemetry. The caller binds the port first, so that a port in use is
// the first error reported.
func (p *process) start(ctx context.Context, opts Options) (err error) {
	p.onClose(func() { _ = p.listener.Close() }) // after a shutdown this is a harmless second time
	p.tele, err = telemetry.New(ctx, telemetry.Options{
		Level:        p.cfg.LogLevel,
		Format:       p.cfg.LogFormat,
		Writer:       opts.Log,
		Export:       p.cfg.OTelEnabled,
		Endpoint:     p.cfg.OTLPEndpoint,
		MSISDNDigits: p.cfg.MSISDNUnmaskedDigits,
		Version:      opts.Version,
	})
	if err != nil {
		return fmt.Errorf("start telemetry: %w", err)
	}
	p.log = p.tele.Logger
	p.onClose(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := p.tele.Shutdown(ctx); err != nil {
			p.log.WarnContext(ctx, "could not flush telemetry", "error", err)
		}
	})
	for _, w := range opts.Warnings {
		p.log.WarnContext(ctx, w.String(), "name", w.Name)
	}
	return nil
}

// bind listens on a port. name is its configuration variable.
func bind(ctx context.Context, host string, port int, name string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is in use: stop the other program, or set %s=%d (0 selects a free port): %w", port, name, port+10, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s %d: %w", name, port, err)
	}
	return l, nil
}

func listen(ctx context.Context, cfg config.Config) (net.Listener, error) {
	l, err := bind(ctx, "", cfg.Port, "TELAPI_PORT")
	if err != nil || !cfg.APITLSEnabled {
		return l, err
	}
	edge, err := cfg.EdgeTLS()
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return tls.NewListener(l, edge), nil
}

func (p *process) address() *net.TCPAddr { return p.listener.Addr().(*net.TCPAddr) }

// serve runs the jobs and serve until ctx ends, and then shuts down: drain makes
// /health return 503, so that load balancers stop sending requests, and after
// DRAIN_DELAY shutdown closes the port and waits for running requests. The jobs run
// until all requests have finished, since these need them. All have ended when serve
// returns.
func (p *process) serve(ctx context.Context, serve func() error, drain func(), shutdown func(context.Context) error) error {
	jobCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var jobs sync.WaitGroup
	for _, job := range p.jobs {
		jobs.Go(func() { job(jobCtx) })
	}
	defer jobs.Wait()
	defer stop()
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
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
	<-served
	return nil
}
