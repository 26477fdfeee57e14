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

// opened is what has to be let go of again, the last first.
type opened []func()

func (o *opened) atEnd(letGo func()) { *o = append(*o, letGo) }

func (o *opened) close() {
	for _, letGo := range slices.Backward(*o) {
		letGo()
	}
}

// process is what the API server and the media service have in common: a port, a
// log, jobs in the background, and a drain at the end.
type process struct {
	opened
	cfg      config.Config
	tele     *telemetry.Telemetry
	log      *slog.Logger
	listener net.Listener
	jobs     []func(context.Context)
}

// start follows upon the binding of a port, so that a port in use is the first
// thing an operator hears of.
func (p *process) start(ctx context.Context, opts Options) (err error) {
	p.atEnd(func() { _ = p.listener.Close() }) // a second time, after a shutdown, is harmless
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
	p.atEnd(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := p.tele.Shutdown(ctx); err != nil {
			p.log.WarnContext(ctx, "telemetry was not flushed", "error", err)
		}
	})
	for _, w := range opts.Warnings {
		p.log.WarnContext(ctx, w.String(), "name", w.Name)
	}
	return nil
}

// bind opens a port. Name is the setting it comes from.
func bind(ctx context.Context, host string, port int, name string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is in use by another program. Stop that, or choose another port: %s=%d (0 picks a free one): %w", port, name, port+10, err)
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

// serve runs until ctx ends and then drains. /health is to answer 503 from
// announce on, so that a load balancer sends new requests elsewhere while this
// process still answers; shutdown takes no more connections and lets requests in
// flight finish. Jobs outlive ctx: those requests need them.
func (p *process) serve(ctx context.Context, serve func() error, announce func(), shutdown func(context.Context) error) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var jobs sync.WaitGroup
	for _, job := range p.jobs {
		jobs.Go(func() { job(background) })
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
	draining, cancel := context.WithTimeout(background, p.cfg.ShutdownTimeout)
	defer cancel()
	announce()
	delay := min(p.cfg.DrainDelay, p.cfg.ShutdownTimeout/2)
	p.log.InfoContext(draining, "draining", "delay", delay, "deadline", p.cfg.ShutdownTimeout)
	_ = sleep.For(draining, delay)
	err := shutdown(draining)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.log.WarnContext(draining, "requests were cut off at the end of SHUTDOWN_TIMEOUT", "timeout", p.cfg.ShutdownTimeout)
	case err != nil:
		return err
	default:
		p.log.InfoContext(draining, "drained")
	}
	<-served
	return nil
}
