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

// NewLogger returns the log alone, for commands that export nothing.
func NewLogger(o Options) *slog.Logger { return slog.New(newHandler(o, newConsole(o))) }

// newConsole writes everything it is given; levels are judged before it.
func newConsole(o Options) slog.Handler {
	file, isFile := o.Writer.(*os.File)
	terminal := isFile && isatty.IsTerminal(file.Fd())
	if o.Format == "text" || o.Format != "json" && terminal {
		return tint.NewTextHandler(o.Writer, &tint.Options{Level: slog.LevelDebug, TimeFormat: time.TimeOnly + ".000", NoColor: !terminal})
	}
	return slog.NewJSONHandler(o.Writer, &slog.HandlerOptions{Level: slog.LevelDebug})
}

// handler redacts every record before anybody else sees it, and adds the ids by
// which the context's request and trace are found again.
type handler struct {
	slog.Handler
	level slog.Level
	clean cleaner
}

func newHandler(o Options, inner slog.Handler) *handler {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.Level)); err != nil {
		level = slog.LevelInfo
	}
	return &handler{inner, level, cleaner{keep: o.MSISDNDigits}}
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var room [16]slog.Attr
	attrs := room[:0]
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, h.clean.attr(a))
		return true
	})
	if id := httpserve.RequestIDFrom(ctx); id != "" {
		attrs = append(attrs, slog.String("request_id", id))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		attrs = append(attrs, slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	clean := slog.NewRecord(r.Time, r.Level, h.clean.text("", r.Message), r.PC)
	clean.AddAttrs(attrs...)
	return h.Handler.Handle(ctx, clean)
}

// WithAttrs and WithGroup wrap again: what is logged behind them is redacted too.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs = slices.Clone(attrs)
	for i, a := range attrs {
		attrs[i] = h.clean.attr(a)
	}
	return &handler{h.Handler.WithAttrs(attrs), h.level, h.clean}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.level, h.clean}
}
