package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/config"
)

// export starts the pipelines of the signals that have an endpoint. It returns the
// handler that exports logs, or nil. Failures of the export are logged to t.Logger only:
// exporting them would cause further failures.
func (t *Telemetry) export(ctx context.Context, endpoints config.OTLPEndpoints, version string, redact redactor) (logs slog.Handler, err error) {
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "telapi"),
		attribute.String("service.version", version),
		attribute.String("service.instance.id", rand.Text()),
	), resource.WithFromEnv())
	if err != nil {
		t.Logger.WarnContext(ctx, "invalid OTEL_RESOURCE_ATTRIBUTES; ignoring invalid attributes", "error", err)
	}
	newPipeline := func(signal string) *pipeline { return &pipeline{signal: signal, console: t.Logger, ended: t.ended} }
	// These are global: the last instance in a process receives the messages of
	// the SDK, which otherwise writes to stderr.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(newPipeline("all").report))
	otel.SetLogger(logr.FromSlogHandler(t.Logger.Handler()))

	if endpoints.Traces != "" {
		spans, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoints.Traces))
		if err != nil {
			return nil, fmt.Errorf("traces: %w", err)
		}
		tracing := sdktrace.NewTracerProvider(sdktrace.WithResource(res),
			sdktrace.WithBatcher(spanExporter{spans, newPipeline("traces"), redact}))
		t.TracerProvider = tracing
		t.shutdown = append(t.shutdown, tracing.Shutdown)
	}
	if endpoints.Metrics != "" {
		metrics, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(endpoints.Metrics))
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		pipe := newPipeline("metrics")
		source := bridge.NewMetricProducer(bridge.WithGatherer(redactingGatherer(t.Registry, redact, pipe)))
		metering := sdkmetric.NewMeterProvider(sdkmetric.WithResource(res),
			sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricExporter{metrics, pipe}, sdkmetric.WithProducer(source))))
		t.shutdown = append(t.shutdown, metering.Shutdown)
	}
	if endpoints.Logs != "" {
		records, err := otlploghttp.New(ctx, otlploghttp.WithEndpointURL(endpoints.Logs))
		if err != nil {
			return nil, fmt.Errorf("logs: %w", err)
		}
		logging := sdklog.NewLoggerProvider(sdklog.WithResource(res),
			sdklog.WithProcessor(sdklog.NewBatchProcessor(logExporter{records, newPipeline("logs")})))
		t.shutdown = append(t.shutdown, logging.Shutdown)
		logs = otelslog.NewHandler("telapi", otelslog.WithLoggerProvider(logging), otelslog.WithVersion(version))
	}
	return logs, nil
}

// reportInterval is the minimum time between two warnings of a pipeline.
const reportInterval = 5 * time.Minute

// pipeline exports one signal. It logs the first failure at once and later ones
// every reportInterval.
type pipeline struct {
	signal  string // or "all"
	console *slog.Logger
	ended   context.Context // ends with the telemetry

	mu         sync.Mutex
	failures   int // since the last report
	nextReport time.Time
}

// send runs an export. It reports its error, so that the SDK does not. It cancels the export
// when the telemetry ends, even if the SDK would retry for longer.
func (p *pipeline) send(ctx context.Context, export func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(p.ended, cancel)
	defer stop()
	p.report(export(ctx))
	return nil
}

func (p *pipeline) report(err error) {
	if err == nil || errors.Is(err, context.Canceled) || p.ended.Err() != nil { // after Shutdown the log may be closed
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures++
	if now := time.Now(); !now.Before(p.nextReport) {
		p.console.Warn("telemetry export failed; data is dropped",
			"signal", p.signal, "failures", p.failures, "error", err)
		p.failures, p.nextReport = 0, now.Add(reportInterval)
	}
}

// The exporters send their data through a pipeline.
type metricExporter struct {
	sdkmetric.Exporter
	pipeline *pipeline
}

func (e metricExporter) Export(ctx context.Context, data *metricdata.ResourceMetrics) error {
	return e.pipeline.send(ctx, func(ctx context.Context) error { return e.Exporter.Export(ctx, data) })
}

type logExporter struct {
	sdklog.Exporter
	pipeline *pipeline
}

func (e logExporter) Export(ctx context.Context, records []sdklog.Record) error {
	return e.pipeline.send(ctx, func(ctx context.Context) error { return e.Exporter.Export(ctx, records) })
}

type spanExporter struct {
	sdktrace.SpanExporter
	pipeline *pipeline
	redact   redactor
}

func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	spans = slices.Clone(spans)
	for i, s := range spans {
		spans[i] = redactedSpan{s, e.redact}
	}
	return e.pipeline.send(ctx, func(ctx context.Context) error { return e.SpanExporter.ExportSpans(ctx, spans) })
}

// redactedSpan is a span with redacted texts.
type redactedSpan struct {
	sdktrace.ReadOnlySpan
	redact redactor
}

func (s redactedSpan) Name() string { return s.redact.text("", s.ReadOnlySpan.Name()) }

func (s redactedSpan) Attributes() []attribute.KeyValue {
	return s.redact.attributes(s.ReadOnlySpan.Attributes())
}

func (s redactedSpan) SpanContext() trace.SpanContext {
	return s.redact.spanContext(s.ReadOnlySpan.SpanContext())
}

func (s redactedSpan) Parent() trace.SpanContext {
	return s.redact.spanContext(s.ReadOnlySpan.Parent())
}

func (s redactedSpan) Status() sdktrace.Status {
	status := s.ReadOnlySpan.Status()
	status.Description = s.redact.text("", status.Description)
	return status
}

func (s redactedSpan) Events() []sdktrace.Event {
	events := slices.Clone(s.ReadOnlySpan.Events())
	for i, e := range events {
		events[i].Name = s.redact.text("", e.Name)
		events[i].Attributes = s.redact.attributes(e.Attributes)
	}
	return events
}

func (s redactedSpan) Links() []sdktrace.Link {
	links := slices.Clone(s.ReadOnlySpan.Links())
	for i, l := range links {
		links[i].Attributes = s.redact.attributes(l.Attributes)
		links[i].SpanContext = s.redact.spanContext(l.SpanContext)
	}
	return links
}

// redactingGatherer redacts label values. It copies label pairs, which are shared
// with the live metrics.
func redactingGatherer(source prometheus.Gatherer, redact redactor, pipe *pipeline) prometheus.GathererFunc {
	return func() ([]*dto.MetricFamily, error) {
		families, err := source.Gather()
		pipe.report(err)
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				metric.Label = slices.Clone(metric.GetLabel())
				for i, l := range metric.GetLabel() {
					if value := redact.text(l.GetName(), l.GetValue()); value != l.GetValue() {
						metric.Label[i] = &dto.LabelPair{Name: l.Name, Value: &value}
					}
				}
			}
		}
		return families, nil
	}
}
