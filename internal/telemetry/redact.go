package telemetry

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/attribute"

	"telapi/internal/redact"
)

// redactor removes secrets and phone numbers from attributes of logs and spans.
type redactor struct{ keep int } // trailing digits of phone numbers

func (r redactor) text(key, value string) string { return redact.Field(key, value, r.keep) }

// shortestPhone is the minimum number of digits of a phone number.
const shortestPhone = 7

func (r redactor) attr(a slog.Attr) slog.Attr {
	a.Value = r.value(a.Key, a.Value.Resolve())
	return a
}

func (r redactor) value(key string, v slog.Value) slog.Value {
	switch v.Kind() {
	case slog.KindString:
		return slog.StringValue(r.text(key, v.String()))
	case slog.KindBool:
		return v // not a secret, as in has_token
	case slog.KindInt64, slog.KindUint64:
		text := v.String()
		if len(text) < shortestPhone && !redact.IsSecretName(key) {
			return v
		}
		if hidden := r.text(key, text); hidden != text {
			return slog.StringValue(hidden)
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
		return slog.StringValue(v.Duration().String()) // JSON would have a number of nanoseconds
	case slog.KindAny:
		return r.any(key, v.Any())
	}
	return v
}

// any converts values that can contain text to redacted text.
func (r redactor) any(key string, v any) slog.Value {
	switch v := v.(type) {
	case nil:
		return slog.AnyValue(nil)
	case error, fmt.Stringer:
		return slog.StringValue(r.text(key, fmt.Sprint(v))) // Sprint recovers from a panic in their methods
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
	case rv.Kind() <= reflect.Complex128: // a number with a named type
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
		if hidden := r.text(string(a.Key), text); hidden != text {
			redacted[i].Value = attribute.StringValue(hidden)
		}
	}
	return redacted
}
