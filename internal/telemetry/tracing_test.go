package telemetry

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/test/testkit"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
)

func TestJoinTrace(t *testing.T) {
	for _, tt := range []struct{ given, want wire.Trace }{
		{wire.Trace{TraceID: traceID, ParentSpanID: spanID}, wire.Trace{TraceID: traceID, ParentSpanID: spanID}},
		{wire.Trace{TraceID: "4BF92F35-77B3-4DA6-A3CE-929D0E0E4736", ParentSpanID: spanID, CallID: "c"}, wire.Trace{TraceID: traceID, ParentSpanID: spanID}},
		{wire.Trace{TraceID: "our-own-17", ParentSpanID: spanID}, wire.Trace{}},
		{wire.Trace{TraceID: "00000000000000000000000000000000", ParentSpanID: spanID}, wire.Trace{}},
		{wire.Trace{ParentSpanID: spanID}, wire.Trace{}},
		{wire.Trace{TraceID: traceID, ParentSpanID: "x"}, wire.Trace{}}, // no span to name
	} {
		testkit.Equal(t, fmt.Sprintf("%+v: joined", tt.given), TraceOf(JoinTrace(t.Context(), tt.given)), tt.want)
	}
	testkit.Equal(t, "without a span: trace", trace.SpanContextFromContext(JoinTrace(t.Context(), wire.Trace{TraceID: traceID})).TraceID().String(), traceID)
	if !SameTraceID("4BF92F35-77B3-4DA6-A3CE-929D0E0E4736", traceID) || SameTraceID(spanID, traceID) {
		t.Error("SameTraceID returns a wrong value")
	}
}

func TestTraceparent(t *testing.T) {
	for traceparent, sampled := range map[string]bool{"00-" + traceID + "-" + spanID + "-01": true, "00-" + traceID + "-" + spanID + "-00": false} {
		ctx := WithTraceparent(t.Context(), traceparent)
		testkit.Equal(t, "traceparent", Traceparent(ctx), traceparent)
		if got := TraceOf(ctx); (got.TraceID == traceID) != sampled {
			t.Errorf("%s: entries get %+v, want a trace only if it is sampled", traceparent, got)
		}
	}
	if ctx := WithTraceparent(t.Context(), "garbage"); Traceparent(ctx) != "" || TraceOf(ctx) != (wire.Trace{}) {
		t.Error("an invalid traceparent is used")
	}
}
