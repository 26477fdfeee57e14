// Package command defines the managed commands, decodes and validates them, and
// decides whether the gateway profile and the platform allow them.
package command

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// Spec describes one command type.
type Spec struct {
	Type   string         `json:"type"`
	Effect string         `json:"effect"`
	Apply  wire.ApplyMode `json:"apply"`
	Fields []Field        `json:"fields"`

	members map[string]bool // names that a managed command may have
}

// Field is a member of a command, besides those that all commands have.
type Field struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Required bool   `json:"required,omitzero"`
	Bounds

	index []int // of the struct field, for reflect
}

// Catalogue lists all command types. Their fields are read from the structs of
// package wire.
var Catalogue = []Spec{
	spec("hangup", wire.ApplyAfterPlayback, "Ends the call after playback and an optional delay."),
	spec("transfer", wire.ApplyAfterPlayback, "Transfers the call to the configured destination or to one the policy allows."),
	spec("set_barge_in", wire.ApplyInOrder, "Enables or disables barge-in by the caller."),
	spec("set_voice_input", wire.ApplyInOrder, "Enables or disables voice input and can clear its buffer."),
	spec("update_stt_config", wire.ApplyImmediately, "Selects a configured speech recognizer and its limits."),
	spec("update_tts_config", wire.ApplyImmediately, "Selects a configured speech synthesizer and its limits."),
	spec("set_tts_voice", wire.ApplyInOrder, "Changes the voice of speech synthesis."),
	spec("set_tts_speaking_rate", wire.ApplyInOrder, "Changes the speaking rate."),
	spec("play_audio", wire.ApplyInOrder, "Plays an audio item by reference."),
	spec("send_dtmf", wire.ApplyInOrder, "Sends DTMF digits on the call leg."),
	spec("update_dtmf_config", wire.ApplyImmediately, "Changes digit collection and barge-in during the call."),
	spec("update_bot_delay_config", wire.ApplyImmediately, "Changes the comfort prompts and the final timeout for a silent bot."),
	spec("set_context", wire.ApplyInOrder, "Sets variables in the runtime's context."),
	spec("emit_event", wire.ApplyInOrder, "Emits a runtime event to downstream consumers."),
}

var specs = func() map[string]*Spec {
	m := make(map[string]*Spec, len(Catalogue))
	for i := range Catalogue {
		m[Catalogue[i].Type] = &Catalogue[i]
	}
	return m
}()

// typeNames lists the command types for messages.
var typeNames = strings.Join(slices.Sorted(maps.Keys(specs)), ", ")

// Known reports whether a command type exists.
func Known(commandType string) bool { return specs[commandType] != nil }

func spec(commandType string, apply wire.ApplyMode, effect string) Spec {
	t := reflect.TypeOf(wire.NewCommand(commandType)).Elem()
	s := Spec{Type: commandType, Effect: effect, Apply: apply, Fields: fieldsOf(t, "", nil), members: memberNames(t)}
	for _, name := range []string{"type", "source", "commandId", "metadata"} {
		s.members[name] = true
	}
	if alias, ok := aliases[commandType]; ok {
		s.members[alias.name] = true
	}
	return s
}

// aliases are second names of members, by type of command or control event. If both members
// are given, the alias is used.
var aliases = map[string]struct{ name, replaces string }{
	"hangup":   {"hangupReason", "reason"},
	"transfer": {"transferTarget", "target"},
	"handover": {"transferTarget", "target"},
}

// memberNames returns the names of a struct's members, except those of
// wire.CommonFields.
func memberNames(t reflect.Type) map[string]bool {
	names := map[string]bool{}
	for _, f := range fieldsOf(t, "", nil) {
		if !strings.Contains(f.Name, ".") { // not a member of config
			names[f.Name] = true
		}
	}
	return names
}

// fieldsOf lists the members of a command's struct, or of a struct in it at prefix and index.
// Embedded structs are flattened; the members of config are named as in "config.retries".
func fieldsOf(t reflect.Type, prefix string, index []int) []Field {
	var fields []Field
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(slices.Clip(index), i)
		switch {
		case f.Type == reflect.TypeFor[wire.CommonFields](): // not listed
		case f.Anonymous:
			fields = append(fields, fieldsOf(f.Type, prefix, at)...)
		default:
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" { // the field that collects all other members
				continue
			}
			name = prefix + name
			fields = append(fields, Field{name, jsonType(f), f.Tag.Get("required") != "", fieldBounds[name], at})
			if f.Type == reflect.TypeFor[*wire.SpeechConfig]() {
				fields = append(fields, fieldsOf(f.Type.Elem(), name+".", at)...)
			}
		}
	}
	return fields
}

var jsonTypes = map[reflect.Kind]string{
	reflect.Bool: "boolean", reflect.Int64: "integer", reflect.Float64: "number", reflect.String: "string",
	reflect.Slice: "array", reflect.Struct: "object",
}

func jsonType(f reflect.StructField) string {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[jsontext.Value]():
		return cmp.Or(f.Tag.Get("shape"), "any")
	case reflect.TypeFor[wire.NameValues]():
		return "object or array"
	default:
		return jsonTypes[t.Kind()]
	}
}

// valueIn returns the field of a command, or a nil pointer if the object that
// contains it is absent.
func (f Field) valueIn(c wire.Command) reflect.Value {
	v, err := reflect.ValueOf(c).Elem().FieldByIndexErr(f.index)
	if err != nil {
		return reflect.ValueOf((*string)(nil))
	}
	return v
}

// create returns the field of a command, so that it can be set. It creates the
// object that contains the field, if necessary.
func (f Field) create(c wire.Command) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

func (s *Spec) field(name string) Field {
	if i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name }); i >= 0 {
		return s.Fields[i]
	}
	panic("command " + s.Type + " has no field " + name)
}
