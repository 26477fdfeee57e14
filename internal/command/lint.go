package command

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// LintProfile returns a warning for each member of a gateway profile that has no
// effect.
func LintProfile(raw jsontext.Value, path string) []strictjson.Warning {
	return strictjson.UnnamedMembers(raw, wire.GatewayProfile{}, path)
}

// LintActions returns a warning for each member of valid managed commands that has
// no effect.
func LintActions(raw jsontext.Value, path string) []strictjson.Warning {
	if raw.Kind() != '[' {
		return lintCommand(raw, path)
	}
	var list []strictjson.Warning
	for i, item := range strictjson.Elements(raw) {
		if len(list) >= strictjson.MaxWarnings {
			break
		}
		list = append(list, lintCommand(item, fault.Pointer(path, i))...)
	}
	return list
}

func lintCommand(raw jsontext.Value, path string) []strictjson.Warning {
	var commandType string
	for name, value := range strictjson.Members(raw) {
		if name == "type" {
			commandType = stringOf(value)
		}
	}
	spec := specs[commandType]
	if spec == nil {
		return nil // the command is denied anyway
	}
	return warnings(ignoredMembers(raw, spec.members, commandType), path, spec.members)
}

// Lint returns a warning for each member of the event's value that has no effect.
func (e *ControlEvent) Lint(path string) []strictjson.Warning {
	return warnings(ignoredMembers(e.Value, usedMembers[e.Name], e.Name), path+"/value", usedMembers[e.Name])
}

func warnings(ignored []string, path string, known map[string]bool) (list []strictjson.Warning) {
	for _, name := range ignored[:min(len(ignored), strictjson.MaxWarnings)] {
		if known[name] {
			list = append(list, strictjson.Warning{Path: path + "/" + name, Message: fmt.Sprintf("%q has no effect, because its other name is given too.", name)})
			continue
		}
		list = append(list, strictjson.UnknownMember(path, name, known, nil))
	}
	return list
}
