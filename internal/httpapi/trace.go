package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
)

// joinTrace continues the trace of the caller: the one of the traceparent header
// or, on webhooks, the one in the query of the callback URL. If both are the same
// trace, the span of traceparent is the parent.
func joinTrace(ctx context.Context, r *http.Request) context.Context {
	if r.Header["Traceparent"] != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	if r.URL.RawQuery == "" || !strings.HasPrefix(r.URL.Path, wire.WebhooksPath) {
		return ctx
	}
	query := r.URL.Query()
	traceID, err := trace.TraceIDFromHex(hexParam(query, "traceId"))
	if err != nil || traceID == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	spanID, _ := trace.SpanIDFromHex(hexParam(query, "parentSpanId")) // optional
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

// hexParam returns an ID as hexadecimal digits. It accepts UUIDs too.
func hexParam(query url.Values, name string) string {
	return strings.ToLower(strings.ReplaceAll(traceParam(query, name), "-", ""))
}

// callTrace returns the trace of a callback's entries. The platform's IDs in the
// query are passed on unchanged; without them, entries belong to the trace of
// this request.
func callTrace(r *http.Request) wire.Trace {
	var t wire.Trace
	if r.URL.RawQuery != "" {
		query := r.URL.Query()
		t = wire.Trace{TraceID: traceParam(query, "traceId"), ParentSpanID: traceParam(query, "parentSpanId"), CallID: traceParam(query, "callId")}
	}
	if span := trace.SpanContextFromContext(r.Context()); t.TraceID == "" && span.IsValid() {
		t.TraceID, t.ParentSpanID = span.TraceID().String(), span.SpanID().String()
	}
	if values := r.Header.Values(wire.TransactionHeader); len(values) == 1 && len(values[0]) == len(uuid.Nil.String()) && uuid.Validate(values[0]) == nil {
		t.TransactionID = values[0]
	}
	return t
}

// validTraceParam matches the IDs that are accepted from other systems.
var validTraceParam = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// traceParam returns a trace parameter of the query. Invalid and repeated ones
// are ignored: tracing must not cause a callback to fail.
func traceParam(query url.Values, name string) string {
	if values := query[name]; len(values) == 1 && validTraceParam.MatchString(values[0]) {
		return values[0]
	}
	return ""
}
