package telemetry

import (
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/attribute"

	"telapi/internal/redact"
)

// cleaner takes secrets and phone numbers out of attributes of logs and spans.
type cleaner struct{ keep int }

func (c cleaner) text(key, value string) string { return redact.Field(key, value, c.keep) }

// number hides a number where its name says that it is a secret or a phone's.
func (c cleaner) number(key string, n int64) (hidden string, ok bool) {
	if n < 1_000_000 && !redact.SecretName(key) { // too short for a phone number
		return "", false
	}
	text := strconv.FormatInt(n, 10)
	hidden = c.text(key, text)
	return hidden, hidden != text
}

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
	case slog.KindInt64:
		if hidden, ok := c.number(key, v.Int64()); ok {
			return slog.StringValue(hidden)
		}
		return v
	case slog.KindUint64:
		if hidden, ok := c.number(key, int64(min(v.Uint64(), math.MaxInt64))); ok {
			return slog.StringValue(hidden)
		}
		return v
	}
	if redact.SecretName(key) {
		return slog.StringValue(redact.Mark)
	}
	switch v.Kind() {
	case slog.KindGroup:
		group := make([]slog.Attr, len(v.Group()))
		for i, a := range v.Group() {
			group[i] = c.attr(a)
		}
		return slog.GroupValue(group...)
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

func (c cleaner) attributes(list []attribute.KeyValue) []attribute.KeyValue {
	clean := make([]attribute.KeyValue, len(list))
	for i, a := range list {
		clean[i] = attribute.KeyValue{Key: a.Key, Value: c.attribute(string(a.Key), a.Value)}
	}
	return clean
}

func (c cleaner) attribute(key string, v attribute.Value) attribute.Value {
	switch v.Type() {
	case attribute.STRING:
		return attribute.StringValue(c.text(key, v.AsString()))
	case attribute.INT64:
		if hidden, ok := c.number(key, v.AsInt64()); ok {
			return attribute.StringValue(hidden)
		}
	case attribute.STRINGSLICE:
		list := v.AsStringSlice()
		for i := range list {
			list[i] = c.text(key, list[i])
		}
		return attribute.StringSliceValue(list)
	case attribute.BYTESLICE:
		return attribute.ByteSliceValue([]byte(c.text(key, string(v.AsByteSlice()))))
	case attribute.SLICE:
		list := v.AsSlice()
		for i := range list {
			list[i] = c.attribute(key, list[i])
		}
		return attribute.SliceValue(list...)
	case attribute.MAP:
		if redact.SecretName(key) {
			return attribute.StringValue(redact.Mark)
		}
		return attribute.MapValue(c.attributes(v.AsMap())...)
	}
	return v
}
