package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"telapi/internal/config"
	"telapi/internal/httpserve"
	"telapi/internal/redact"
)

// NewLogger returns a logger that writes to w only, without OpenTelemetry export.
func NewLogger(cfg config.Config, w io.Writer) *slog.Logger {
	return slog.New(newHandler(cfg, newOutput(cfg, w)))
}

// newOutput returns a handler that writes to w. It accepts all levels: handler checks them.
func newOutput(cfg config.Config, w io.Writer) slog.Handler {
	file, isFile := w.(*os.File)
	isTerminal := isFile && isatty.IsTerminal(file.Fd())
	if cfg.LogFormat == "text" || cfg.LogFormat != "json" && isTerminal {
		return tint.NewTextHandler(w, &tint.Options{Level: slog.LevelDebug, TimeFormat: time.TimeOnly + ".000", NoColor: !cfg.Color(isTerminal)})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})
}

// handler redacts every record and adds the request and trace IDs of the context.
type handler struct {
	slog.Handler
	level  slog.Level
	redact redactor
}

func newHandler(cfg config.Config, inner slog.Handler) *handler {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // it is valid, or empty in tests: info
	return &handler{inner, level, redactor{cfg.MSISDNUnmaskedDigits}}
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	var buf [16]slog.Attr // enough for most records, without an allocation
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

// redactor removes secrets and phone numbers from attributes of logs, spans and
// metrics.
type redactor struct {
	unmaskedDigits int // trailing digits of phone numbers that stay visible
}

func (r redactor) text(key, value string) string { return redact.Field(key, value, r.unmaskedDigits) }

// minPhoneDigits is the minimum number of digits of a phone number: shorter numbers need no check.
const minPhoneDigits = 7

func (r redactor) attr(a slog.Attr) slog.Attr {
	a.Value = r.value(a.Key, a.Value.Resolve())
	return a
}

func (r redactor) value(key string, v slog.Value) slog.Value {
	switch v.Kind() {
	case slog.KindString:
		return slog.StringValue(r.text(key, v.String()))
	case slog.KindBool:
		return v // a flag such as has_token is not a secret
	case slog.KindInt64, slog.KindUint64:
		if text := v.String(); len(text) >= minPhoneDigits || redact.IsSecretName(key) {
			if redacted := r.text(key, text); redacted != text {
				return slog.StringValue(redacted)
			}
		}
		return v
	}
	if redact.IsSecretName(key) {
		return slog.StringValue(redact.Placeholder)
	}
	switch v.Kind() {
	case slog.KindGroup:
		group := make([]slog.Attr, len(v.Group()))
		for i, a := range v.Group() {
			group[i] = r.attr(a)
		}
		return slog.GroupValue(group...)
	case slog.KindDuration:
		return slog.StringValue(v.Duration().String()) // the JSON handler would write nanoseconds
	case slog.KindAny:
		return r.object(key, v.Any())
	}
	return v
}

// object converts values that can contain text to redacted text.
func (r redactor) object(key string, v any) slog.Value {
	switch v := v.(type) {
	case nil:
		return slog.AnyValue(nil)
	case error, fmt.Stringer:
		return slog.StringValue(r.text(key, fmt.Sprint(v))) // recovers from a panic in their methods
	case []byte:
		return slog.StringValue(r.text(key, string(v)))
	case []string:
		list := make([]string, len(v))
		for i := range v {
			list[i] = r.text(key, v[i])
		}
		return slog.AnyValue(list)
	}
	switch rv := reflect.ValueOf(v); {
	case rv.Kind() == reflect.String:
		return slog.StringValue(r.text(key, rv.String()))
	case rv.Kind() <= reflect.Complex128: // a boolean or number of a named type: their kinds come first
		return slog.AnyValue(v)
	}
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		text = fmt.Appendf(nil, "%+v", v)
	}
	return slog.StringValue(r.text(key, string(text)))
}

// attributes returns the attributes of a span with redacted values.
func (r redactor) attributes(list []attribute.KeyValue) []attribute.KeyValue {
	redacted := slices.Clone(list)
	for i, a := range list {
		text := a.Value.String()
		switch a.Value.Type() {
		case attribute.BOOL:
			continue
		case attribute.BYTESLICE:
			text = string(a.Value.AsByteSlice())
		}
		if replacement := r.text(string(a.Key), text); replacement != text {
			redacted[i].Value = attribute.StringValue(replacement)
		}
	}
	return redacted
}

// spanContext removes the members of tracestate that contain a secret or a phone number. The
// caller of the API chooses their names, so every value is also checked like one of call_id.
func (r redactor) spanContext(sc trace.SpanContext) trace.SpanContext {
	state := sc.TraceState()
	redacted := state
	state.Walk(func(name, value string) bool {
		if redact.Field(name, value, 0) != value || redact.Field("call_id", value, 0) != value {
			redacted = redacted.Delete(name)
		}
		return true
	})
	return sc.WithTraceState(redacted)
}
