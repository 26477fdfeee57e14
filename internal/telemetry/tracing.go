package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
)

// StartSpan starts a span below that of ctx, with the same provider. It costs nothing if
// that of ctx is not recorded.
func StartSpan(ctx context.Context, name string) (context.Context, trace.Span) {
	if span := trace.SpanFromContext(ctx); !span.IsRecording() {
		return ctx, span
	}
	return TracerOf(ctx).Start(ctx, name)
}

// TracerOf returns the tracer of the span in ctx.
func TracerOf(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("telapi")
}

// TraceOf returns the trace for entries and messages that the span of ctx causes. It is
// empty if the span is not sampled: the form has no flag for that, and its receivers
// record all traces that they get.
func TraceOf(ctx context.Context) (t wire.Trace) {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() && span.IsSampled() {
		t.TraceID, t.ParentSpanID = span.TraceID().String(), span.SpanID().String()
	}
	return t
}

// JoinTrace returns a context whose spans belong to a received trace. Without a valid
// trace ID it returns ctx. IDs may have the form of a UUID. The span ID is optional.
func JoinTrace(ctx context.Context, t wire.Trace) context.Context {
	traceID, err := trace.TraceIDFromHex(digits(t.TraceID))
	if err != nil {
		return ctx
	}
	spanID, _ := trace.SpanIDFromHex(digits(t.ParentSpanID))
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

// digits returns the hexadecimal digits of an ID.
func digits(id string) string { return strings.ToLower(strings.ReplaceAll(id, "-", "")) }

// SameTraceID reports whether two IDs have the same digits.
func SameTraceID(a, b string) bool { return digits(a) == digits(b) }

// traceHeader is the name of the header that carries a span.
const traceHeader = "traceparent"

// Traceparent returns the traceparent of the span in ctx, or an empty string.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceHeader]
}

// WithTraceparent returns a context whose spans are children of a traceparent. It returns
// ctx if the traceparent is invalid.
func WithTraceparent(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceHeader: traceparent})
}
