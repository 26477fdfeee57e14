package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/contrib/bridges/otelslog"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// export starts the three pipelines to the collector and returns the handler
// that feeds the one for logs. Their troubles go to console only: a pipeline
// that reported its own failures to itself would never come to rest.
func (t *Telemetry) export(ctx context.Context, o Options, console *slog.Logger) (slog.Handler, error) {
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "telapi"),
		attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", cmp.Or(o.InstanceID, rand.Text())),
	), resource.WithFromEnv())
	if err != nil {
		console.WarnContext(ctx, "a part of OTEL_RESOURCE_ATTRIBUTES is not used", "error", err)
	}
	base := strings.TrimRight(o.Endpoint, "/")
	clean := cleaner{keep: o.MSISDNDigits}
	pipe := func(signal string) *pipe { return &pipe{signal: signal, console: console, ended: t.ended} }
	// Global, so that of several instances in one process the last one hears
	// what any SDK has to say. Without it, the SDK writes to stderr by itself.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(pipe("all").note))
	otel.SetLogger(logr.FromSlogHandler(console.Handler()))

	spans, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(base+"/v1/traces"))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	tracing := sdktrace.NewTracerProvider(sdktrace.WithResource(about),
		sdktrace.WithBatcher(spanExporter{spans, pipe("traces"), clean}))
	t.TracerProvider = tracing
	t.shutdown = append(t.shutdown, tracing.Shutdown)

	metrics, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(base+"/v1/metrics"))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	toMetrics := pipe("metrics")
	source := bridge.NewMetricProducer(bridge.WithGatherer(cleanGatherer(t.Registry, clean, toMetrics)))
	metering := sdkmetric.NewMeterProvider(sdkmetric.WithResource(about),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricExporter{metrics, toMetrics}, sdkmetric.WithProducer(source))))
	t.shutdown = append(t.shutdown, metering.Shutdown)

	records, err := otlploghttp.New(ctx, otlploghttp.WithEndpointURL(base+"/v1/logs"))
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	logging := sdklog.NewLoggerProvider(sdklog.WithResource(about),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(logExporter{records, pipe("logs")})))
	t.shutdown = append(t.shutdown, logging.Shutdown)
	return otelslog.NewHandler("telapi", otelslog.WithLoggerProvider(logging), otelslog.WithVersion(o.Version)), nil
}

// quiet is how long a pipe says nothing after it has reported a failure.
const quiet = 5 * time.Minute

// pipe is one signal's way to the collector. It reports the first failure, and
// later ones every few minutes.
type pipe struct {
	signal  string
	console *slog.Logger
	ended   <-chan struct{}

	mu       sync.Mutex
	failures int
	next     time.Time // of a report
}

// send runs an export, which ends with the telemetry even where the SDK would
// try again for longer.
func (p *pipe) send(ctx context.Context, export func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	p.note(export(ctx))
	return nil
}

func (p *pipe) note(err error) {
	if err == nil || errors.Is(err, context.Canceled) { // canceled is what Shutdown does
		return
	}
	select {
	case <-p.ended: // and so has the owner of the log, perhaps
		return
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures++
	if now := time.Now(); !now.Before(p.next) {
		p.console.Warn("telemetry does not reach the collector and is dropped",
			"signal", p.signal, "failures", p.failures, "error", err)
		p.failures, p.next = 0, now.Add(quiet)
	}
}

type metricExporter struct {
	sdkmetric.Exporter
	pipe *pipe
}

func (e metricExporter) Export(ctx context.Context, data *metricdata.ResourceMetrics) error {
	return e.pipe.send(ctx, func(ctx context.Context) error { return e.Exporter.Export(ctx, data) })
}

type logExporter struct {
	sdklog.Exporter
	pipe *pipe
}

func (e logExporter) Export(ctx context.Context, records []sdklog.Record) error {
	return e.pipe.send(ctx, func(ctx context.Context) error { return e.Exporter.Export(ctx, records) })
}

type spanExporter struct {
	sdktrace.SpanExporter
	pipe  *pipe
	clean cleaner
}

func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	spans = slices.Clone(spans)
	for i, s := range spans {
		spans[i] = cleanSpan{s, e.clean}
	}
	return e.pipe.send(ctx, func(ctx context.Context) error { return e.SpanExporter.ExportSpans(ctx, spans) })
}

// cleanSpan is a span as the collector may see it.
type cleanSpan struct {
	sdktrace.ReadOnlySpan
	clean cleaner
}

func (s cleanSpan) Name() string { return s.clean.text("", s.ReadOnlySpan.Name()) }

func (s cleanSpan) Attributes() []attribute.KeyValue {
	return s.clean.attributes(s.ReadOnlySpan.Attributes())
}

func (s cleanSpan) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	status.Description = s.clean.text("", status.Description)
	return status
}

func (s cleanSpan) Events() []sdktrace.Event {
	events := slices.Clone(s.ReadOnlySpan.Events())
	for i, e := range events {
		events[i].Name = s.clean.text("", e.Name)
		events[i].Attributes = s.clean.attributes(e.Attributes)
	}
	return events
}

func (s cleanSpan) Links() []sdktrace.Link {
	links := slices.Clone(s.ReadOnlySpan.Links())
	for i, l := range links {
		links[i].Attributes = s.clean.attributes(l.Attributes)
	}
	return links
}

// cleanGatherer redacts the label values of what is exported. Label pairs are
// shared with the live metrics, so a changed one is a copy.
func cleanGatherer(from prometheus.Gatherer, clean cleaner, pipe *pipe) prometheus.GathererFunc {
	return func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		pipe.note(err)
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				metric.Label = slices.Clone(metric.GetLabel())
				for i, l := range metric.GetLabel() {
					if value := clean.text(l.GetName(), l.GetValue()); value != l.GetValue() {
						metric.Label[i] = &dto.LabelPair{Name: l.Name, Value: &value}
					}
				}
			}
		}
		return families, nil
	}
}
