package channel

import (
	"bytes"
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/telemetry"
)

// trace returns the trace of entries and offers that the connection itself causes.
func (c *Connection) trace() wire.Trace {
	return telemetry.TraceOf(trace.ContextWithSpanContext(context.Background(), c.handshake))
}

// parseTrace returns the trace in a browser's frame. It ignores an invalid trace:
// tracing must not cause a frame to fail.
func parseTrace(raw jsontext.Value) wire.Trace {
	var t wire.Trace
	if raw == nil || json.Unmarshal(raw, &t) != nil {
		return wire.Trace{}
	}
	return telemetry.TraceOf(telemetry.JoinTrace(context.Background(), t))
}

// startFrame starts the span of a browser's frame. Its parent is the span in the
// frame's trace or, without one, the span of the handshake. It returns the trace for
// the frame's entry. The span is nil if neither is traced.
func (c *Connection) startFrame(m *wire.ChannelMessage) (wire.Trace, trace.Span) {
	if m.Trace == (wire.Trace{}) && !c.handshake.IsValid() {
		return wire.Trace{}, nil
	}
	ctx := telemetry.JoinTrace(trace.ContextWithSpanContext(context.Background(), c.handshake), m.Trace)
	ctx, span := c.tracer.Start(ctx, "frame "+string(m.Type), trace.WithSpanKind(trace.SpanKindConsumer), c.attributes(m.MessageID))
	return telemetry.TraceOf(ctx), span
}

// recordDelivery records a span for a message that contains a trace.
func (c *Connection) recordDelivery(m Message) {
	if !bytes.Contains(m.JSON, []byte(`"trace":`)) {
		return
	}
	var traced struct {
		MessageID string     `json:"messageId"`
		Trace     wire.Trace `json:"trace"`
	}
	if json.Unmarshal(m.JSON, &traced) != nil {
		return
	}
	ctx := telemetry.JoinTrace(context.Background(), traced.Trace)
	if trace.SpanContextFromContext(ctx).HasTraceID() {
		_, span := c.tracer.Start(ctx, "message "+string(typeOf(m.JSON)), trace.WithSpanKind(trace.SpanKindProducer), c.attributes(traced.MessageID))
		span.End()
	}
}

func (c *Connection) attributes(messageID string) trace.SpanStartEventOption {
	return trace.WithAttributes(
		attribute.String("telapi.session_id", c.session.SessionID),
		attribute.String("telapi.team_id", c.session.TeamID),
		attribute.String("telapi.message_id", messageID),
	)
}
