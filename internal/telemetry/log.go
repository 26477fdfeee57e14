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

	"telapi/internal/reqid"
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
// which the context's request and trace are found again. The ids stand beside
// the message even when the logger has opened a group; for that, what was done
// since the first group is kept, and done again behind them.
type handler struct {
	level slog.Level
	clean cleaner
	outer slog.Handler // before the first group
	since []func(slog.Handler) slog.Handler
	inner slog.Handler // outer, and all since
}

func newHandler(o Options, inner slog.Handler) *handler {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.Level)); err != nil {
		level = slog.LevelInfo
	}
	return &handler{level: level, clean: cleaner{keep: o.MSISDNDigits}, outer: inner, inner: inner}
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.inner.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, h.clean.text("", r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.clean.attr(a))
		return true
	})
	ids := idsOf(ctx)
	if len(h.since) == 0 {
		clean.AddAttrs(ids...)
		return h.inner.Handle(ctx, clean)
	}
	to := h.outer.WithAttrs(ids)
	for _, step := range h.since {
		to = step(to)
	}
	return to.Handle(ctx, clean)
}

func idsOf(ctx context.Context) (ids []slog.Attr) {
	if id := reqid.From(ctx); id != "" {
		ids = append(ids, slog.String("request_id", id))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		ids = append(ids, slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return ids
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	attrs = slices.Clone(attrs)
	for i, a := range attrs {
		attrs[i] = h.clean.attr(a)
	}
	return h.then(len(h.since) > 0, func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.then(true, func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *handler) then(inGroup bool, step func(slog.Handler) slog.Handler) *handler {
	next := *h
	next.inner = step(h.inner)
	if inGroup {
		next.since = append(slices.Clip(h.since), step)
	} else {
		next.outer = next.inner
	}
	return &next
}
