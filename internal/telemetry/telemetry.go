// Package telemetry provides the log, the Prometheus registry and the export of
// traces, metrics and logs over OTLP. Everything is redacted before it leaves the
// process.
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

	"telapi/internal/config"
)

// flushTimeout limits the last export, so that an unreachable collector does not
// delay the shutdown.
const flushTimeout = 3 * time.Second

// Telemetry holds the logger, the metrics registry and the tracer provider.
type Telemetry struct {
	Logger         *slog.Logger
	Registry       *prometheus.Registry
	TracerProvider trace.TracerProvider

	shutdown []func(context.Context) error
	ended    context.Context // canceled by Shutdown; ends all exports
	end      context.CancelFunc
}

// New starts telemetry, with a log to w. Exports run in the background. If the collector is
// unreachable, they are dropped and a warning is logged every few minutes.
func New(ctx context.Context, cfg config.Config, version string, w io.Writer) (*Telemetry, error) {
	output := newOutput(cfg, w)
	t := &Telemetry{
		Logger:         slog.New(newHandler(cfg, output)),
		Registry:       newRegistry(version),
		TracerProvider: noop.NewTracerProvider(),
	}
	t.ended, t.end = context.WithCancel(context.WithoutCancel(ctx))
	switch endpoints := cfg.OTLP(); {
	case !cfg.OTelEnabled:
	case endpoints == config.OTLPEndpoints{}:
		t.Logger.InfoContext(ctx, "OTEL_ENABLED is set, but nothing is exported: set OTEL_EXPORTER_OTLP_ENDPOINT")
	default:
		exportHandler, err := t.export(ctx, endpoints, version, redactor{cfg.MSISDNUnmaskedDigits})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("export telemetry: %w", err), t.Shutdown(ctx))
		}
		t.Logger.InfoContext(ctx, "exporting telemetry", "traces", endpoints.Traces, "metrics", endpoints.Metrics, "logs", endpoints.Logs)
		if exportHandler != nil {
			t.Logger = slog.New(newHandler(cfg, slog.NewMultiHandler(output, exportHandler)))
		}
	}
	return t, nil
}

// Shutdown exports remaining data and stops the export within flushTimeout. Call it once.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	defer t.end()
	var running sync.WaitGroup
	errs := make([]error, len(t.shutdown))
	for i, shutdown := range t.shutdown {
		running.Go(func() { errs[i] = shutdown(ctx) })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("flush telemetry: %w", err)
	}
	return nil
}

func newRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	buildInfo := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "telapi_build_info",
		Help:        "Always 1; the label version has the server's version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
	registry.MustRegister(buildInfo, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
