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

// joinTrace makes the request a part of the trace it belongs to: the one that
// traceparent names, or, on webhooks, the one that the platform wrote into the
// callback's URL. Where both name the same trace, traceparent is closer.
func joinTrace(ctx context.Context, r *http.Request) context.Context {
	if r.Header["Traceparent"] != nil {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	if r.URL.RawQuery == "" || !strings.HasPrefix(r.URL.Path, webhooksPath) {
		return ctx
	}
	query := r.URL.Query()
	traceID, err := trace.TraceIDFromHex(hexOf(query, "traceId"))
	if err != nil || traceID == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	spanID, _ := trace.SpanIDFromHex(hexOf(query, "parentSpanId")) // without one the trace still is the same
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
}

// hexOf takes an id that is written as a UUID, too.
func hexOf(query url.Values, name string) string {
	return strings.ToLower(strings.ReplaceAll(traceParam(query, name), "-", ""))
}

// callTrace is what a callback tells of its place in the call, for the stream.
// The platform's own ids are passed on as they came; without them, entries join
// the trace of this request.
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

// traceID is what an id of another system may look like.
var traceID = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// traceParam drops what is not given once and sanely: a call must not suffer
// from what is there to watch it.
func traceParam(query url.Values, name string) string {
	if values := query[name]; len(values) == 1 && traceID.MatchString(values[0]) {
		return values[0]
	}
	return ""
}
