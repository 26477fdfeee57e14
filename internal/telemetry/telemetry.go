// Package telemetry owns what the process tells about itself: the log, the
// Prometheus registry, and the export of traces, metrics and logs over OTLP.
// Whatever leaves through it has been through package redact first.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// flushTimeout bounds the last export, so that a lost collector does not hold
// up the end of the process.
const flushTimeout = 3 * time.Second

// Options say what to log, and where to.
type Options struct {
	Level        string    // debug, info, warn or error; anything else is info
	Format       string    // text, json, or auto: text where Writer is a terminal
	Writer       io.Writer // of the log
	Export       bool      // OTEL_ENABLED
	Endpoint     string    // base URL of the OTLP/HTTP collector
	MSISDNDigits int       // trailing digits that masked phone numbers keep
	Version      string
	InstanceID   string // as OpenTelemetry's service.instance.id; empty: made up
}

// Telemetry holds what the rest of the service is given. It is ready to use;
// Shutdown ends it.
type Telemetry struct {
	Logger         *slog.Logger
	Registry       *prometheus.Registry
	TracerProvider trace.TracerProvider

	shutdown []func(context.Context) error
	ended    chan struct{}
	end      sync.Once
}

// New starts telemetry. An unreachable collector is no error, now or later:
// exports are made in the background, dropped when they fail, and the log says
// so every few minutes.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	console := newConsole(o)
	t := &Telemetry{
		Logger:         slog.New(newHandler(o, console)),
		Registry:       newRegistry(o.Version),
		TracerProvider: noop.NewTracerProvider(),
		ended:          make(chan struct{}),
	}
	switch {
	case !o.Export:
	case o.Endpoint == "":
		t.Logger.InfoContext(ctx, "OTEL_ENABLED is on, but OTEL_EXPORTER_OTLP_ENDPOINT names no collector: nothing is exported")
	default:
		exported, err := t.export(ctx, o, t.Logger)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("export to %s: %w", o.Endpoint, err), t.Shutdown(ctx))
		}
		t.Logger.InfoContext(ctx, "exporting traces, metrics and logs", "collector", o.Endpoint)
		t.Logger = slog.New(newHandler(o, slog.NewMultiHandler(console, exported)))
	}
	return t, nil
}

// Shutdown exports what is left and ends the export. It takes a few seconds at
// the most, and can be called again.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var err error
	t.end.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, flushTimeout)
		defer cancel()
		var wait sync.WaitGroup
		failed := make([]error, len(t.shutdown))
		for i, shutdown := range t.shutdown {
			wait.Go(func() { failed[i] = shutdown(ctx) })
		}
		wait.Wait()
		close(t.ended)
		if err = errors.Join(failed...); err != nil {
			err = fmt.Errorf("flush telemetry: %w", err)
		}
	})
	return err
}

func newRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "telapi_build_info",
		Help:        "Always 1; the label says which version runs.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
