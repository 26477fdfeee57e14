package command

import (
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// settings are the values of sessionParams in the order of the table, nil where
// a key was not given.
type settings []any

// readSettings holds the sessionParams below path against the table.
func readSettings(raw jsontext.Value, path string, issues *fault.Issues) settings {
	if raw.Kind() != '{' {
		return nil
	}
	g := given{make(settings, len(SessionParams)), path + "/sessionParams", issues}
	_ = json.Unmarshal(raw, &g, jsontext.AllowDuplicateNames(true)) // raw is well formed, and that was looked for
	return g.settings
}

// given reads settings out of their object.
type given struct {
	settings
	path   string
	issues *fault.Issues
}

// UnmarshalJSONFrom looks at one member after the other.
func (g *given) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() == '"' {
		var name jsontext.Token
		if name, err = dec.ReadToken(); err != nil {
			break
		}
		key := name.String()
		var value jsontext.Value
		if value, err = dec.ReadValue(); err != nil {
			break
		}
		if i, known := paramIndex[key]; known {
			g.settings[i] = SessionParams[i].read(value, g.path, g.issues)
		} else {
			g.issues.Add(fault.Pointer(g.path, key), fault.IssueUnknown, "There is no such session parameter.")
		}
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

// commands sends each given value to the field that carries it. Only what was
// given is set, and only commands with something to say are made.
func (s settings) commands() []wire.Command {
	var list []wire.Command
	for _, commandType := range []string{dtmf, delay, stt, tts} {
		var c wire.Command
		for i, value := range s {
			p := &SessionParams[i]
			if value == nil || p.Command != commandType {
				continue
			}
			if c == nil {
				c = wire.NewCommand(commandType)
				list = append(list, c)
			}
			if field := specs[commandType].field(p.Field).of(c); field.IsNil() {
				to := reflect.New(field.Type().Elem())
				to.Elem().Set(reflect.ValueOf(value))
				field.Set(to)
			}
		}
	}
	return list
}
