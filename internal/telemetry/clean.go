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

// cleaner takes secrets and phone numbers out of attributes of logs and spans.
type cleaner struct{ keep int }

func (c cleaner) text(key, value string) string { return redact.Field(key, value, c.keep) }

// shortestPhone is how many digits a phone number has at the least.
const shortestPhone = 7

func (c cleaner) attr(a slog.Attr) slog.Attr {
	a.Value = c.value(a.Key, a.Value.Resolve())
	return a
}

func (c cleaner) value(key string, v slog.Value) slog.Value {
	switch v.Kind() {
	case slog.KindString:
		return slog.StringValue(c.text(key, v.String()))
	case slog.KindBool:
		return v // whether there is a secret is none
	case slog.KindInt64, slog.KindUint64:
		text := v.String()
		if len(text) < shortestPhone && !redact.IsSecretName(key) {
			return v
		}
		if hidden := c.text(key, text); hidden != text {
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
			group[i] = c.attr(a)
		}
		return slog.GroupValue(group...)
	case slog.KindDuration:
		return slog.StringValue(v.Duration().String()) // with its unit, where JSON has a bare number of nanoseconds
	case slog.KindAny:
		return c.any(key, v.Any())
	}
	return v
}

// any turns what could hide a text into that text, as a log would print it.
func (c cleaner) any(key string, v any) slog.Value {
	switch v := v.(type) {
	case nil:
		return slog.AnyValue(nil)
	case error, fmt.Stringer:
		return slog.StringValue(c.text(key, fmt.Sprint(v))) // Sprint survives a panic in them
	case []byte:
		return slog.StringValue(c.text(key, string(v)))
	case []string:
		list := make([]string, len(v))
		for i := range v {
			list[i] = c.text(key, v[i])
		}
		return slog.AnyValue(list)
	}
	switch rv := reflect.ValueOf(v); {
	case rv.Kind() == reflect.String:
		return slog.StringValue(c.text(key, rv.String()))
	case rv.Kind() <= reflect.Complex128: // a number with a type of its own
		return slog.AnyValue(v)
	}
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		text = fmt.Appendf(nil, "%+v", v)
	}
	return slog.StringValue(c.text(key, string(text)))
}

// attributes of a span stay as they are, or become clean text.
func (c cleaner) attributes(list []attribute.KeyValue) []attribute.KeyValue {
	clean := slices.Clone(list)
	for i, a := range list {
		text := a.Value.String()
		switch a.Value.Type() {
		case attribute.BOOL:
			continue
		case attribute.BYTESLICE:
			text = string(a.Value.AsByteSlice())
		}
		if hidden := c.text(string(a.Key), text); hidden != text {
			clean[i].Value = attribute.StringValue(hidden)
		}
	}
	return clean
}
