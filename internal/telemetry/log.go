package telemetry

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/httpserve"
)

// NewLogger returns a logger without export.
func NewLogger(o Options) *slog.Logger { return slog.New(newHandler(o, newConsole(o))) }

// newConsole returns a handler for all levels. The level is checked by handler.
func newConsole(o Options) slog.Handler {
	file, isFile := o.Writer.(*os.File)
	terminal := isFile && isatty.IsTerminal(file.Fd())
	if o.Format == "text" || o.Format != "json" && terminal {
		return tint.NewTextHandler(o.Writer, &tint.Options{Level: slog.LevelDebug, TimeFormat: time.TimeOnly + ".000", NoColor: !terminal})
	}
	return slog.NewJSONHandler(o.Writer, &slog.HandlerOptions{Level: slog.LevelDebug})
}

// handler redacts every record and adds the request and trace IDs of the context.
type handler struct {
	slog.Handler
	level  slog.Level
	redact redactor
}

func newHandler(o Options, inner slog.Handler) *handler {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.Level)); err != nil {
		level = slog.LevelInfo
	}
	return &handler{inner, level, redactor{keep: o.MSISDNDigits}}
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var buf [16]slog.Attr
	attrs := buf[:0]
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, h.redact.attr(a))
		return true
	})
	if id := httpserve.RequestIDFrom(ctx); id != "" {
		attrs = append(attrs, slog.String("request_id", id))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		attrs = append(attrs, slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	redacted := slog.NewRecord(r.Time, r.Level, h.redact.text("", r.Message), r.PC)
	redacted.AddAttrs(attrs...)
	return h.Handler.Handle(ctx, redacted)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs = slices.Clone(attrs)
	for i, a := range attrs {
		attrs[i] = h.redact.attr(a)
	}
	return &handler{h.Handler.WithAttrs(attrs), h.level, h.redact}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.level, h.redact}
}
