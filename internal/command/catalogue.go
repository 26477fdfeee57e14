// Package command owns the managed runtime commands: which there are, how a
// provider's callback asks for them, what they may contain, and whether the
// flow and the platform permit them.
package command

import (
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// Spec describes one command type.
type Spec struct {
	Type   string     `json:"type"`
	Effect string     `json:"effect"`
	Apply  wire.Apply `json:"apply"`
	Fields []Field    `json:"fields"`
}

// Field is one member of a command, besides those that every command has.
type Field struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Required bool   `json:"required,omitzero"`

	index []int
}

// Catalogue lists every command type. Fields come from the wire structs, so
// the list cannot drift from what is sent.
var Catalogue = []Spec{
	spec("hangup", wire.AfterPlayback, "Ends the call once speech has drained and an optional delay has passed."),
	spec("transfer", wire.AfterPlayback, "Transfers the call to the configured destination or to one the policy permits."),
	spec("set_barge_in", wire.InOrder, "Switches barge-in by the caller on or off."),
	spec("set_voice_input", wire.InOrder, "Switches voice input on or off and can drop what was buffered."),
	spec("update_stt_config", wire.Immediate, "Selects among the configured speech recognisers and bounds their use."),
	spec("update_tts_config", wire.Immediate, "Selects among the configured speech synthesisers and bounds their use."),
	spec("set_tts_voice", wire.InOrder, "Changes the voice that speaks."),
	spec("set_tts_speaking_rate", wire.InOrder, "Changes how fast the voice speaks."),
	spec("play_audio", wire.InOrder, "Plays an audio item by reference."),
	spec("send_dtmf", wire.InOrder, "Sends DTMF digits on the call leg."),
	spec("update_dtmf_config", wire.Immediate, "Changes digit collection and barge-in while the call runs."),
	spec("update_bot_delay_config", wire.Immediate, "Changes comfort prompts and the final time-out while the bot is silent."),
	spec("set_context", wire.InOrder, "Writes variables of the runtime's context."),
	spec("emit_event", wire.InOrder, "Emits a runtime event to whoever listens downstream."),
}

var specs = func() map[string]*Spec {
	m := make(map[string]*Spec, len(Catalogue))
	for i := range Catalogue {
		m[Catalogue[i].Type] = &Catalogue[i]
	}
	return m
}()

// Known tells whether there is a command of that type.
func Known(commandType string) bool { return specs[commandType] != nil }

func spec(commandType string, apply wire.Apply, effect string) Spec {
	t := reflect.TypeOf(wire.NewCommand(commandType)).Elem()
	return Spec{commandType, effect, apply, fieldsOf(t, "", nil)}
}

// fieldsOf flattens a command's struct as JSON does; members of an object that
// has a struct of its own follow it as "config.retries".
func fieldsOf(t reflect.Type, prefix string, index []int) []Field {
	var fields []Field
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(append([]int(nil), index...), i)
		switch {
		case f.Type == reflect.TypeFor[wire.Header]() || !f.IsExported():
		case f.Anonymous:
			fields = append(fields, fieldsOf(f.Type, prefix, at)...)
		default:
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, Field{prefix + name, jsonType(f), f.Tag.Get("required") != "", at})
			if f.Type == reflect.TypeFor[wire.SpeechConfig]() {
				fields = append(fields, fieldsOf(f.Type, prefix+name+".", at)...)
			}
		}
	}
	return fields
}

func jsonType(f reflect.StructField) string {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[jsontext.Value]():
		if shape := f.Tag.Get("shape"); shape != "" {
			return shape
		}
		return "any"
	case t == reflect.TypeFor[wire.NameValues]():
		return "object or array"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array"
	case reflect.Struct:
		return "object"
	default:
		return "string"
	}
}

// of finds the place of the field in a command.
func (f Field) of(c wire.Command) reflect.Value {
	return reflect.ValueOf(c).Elem().FieldByIndex(f.index)
}

func (s *Spec) field(name string) Field {
	for _, f := range s.Fields {
		if f.Name == name {
			return f
		}
	}
	panic("command " + s.Type + " has no field " + name) // a table names a field that is not there
}
