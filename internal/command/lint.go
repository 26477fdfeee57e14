package command

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// LintProfile returns a warning for each member of a gateway profile that has no
// effect.
func LintProfile(raw jsontext.Value, path string) []strictjson.Warning {
	return strictjson.UnknownMembers(raw, wire.GatewayProfile{}, path, false, nil)
}

// LintActions returns a warning for each member of valid managed commands that has
// no effect.
func LintActions(raw jsontext.Value, path string) []strictjson.Warning {
	if raw.Kind() != '[' {
		return lintCommand(raw, path)
	}
	var items []jsontext.Value
	_ = json.Unmarshal(raw, &items) // cannot fail: raw is a decoded array
	var warnings []strictjson.Warning
	for i, item := range items {
		warnings = append(warnings, lintCommand(item, fault.Pointer(path, i))...)
	}
	return warnings
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
	return lintMembers(raw, path, spec.members)
}

// Lint returns a warning for each member of the event's value that has no effect.
func (e *ControlEvent) Lint(path string) []strictjson.Warning {
	return lintMembers(e.Value, path+"/value", eventMembers)
}

func lintMembers(raw jsontext.Value, path string, known map[string]bool) []strictjson.Warning {
	ignored, _ := validator{path, new(fault.Issues)}.members(raw, known)
	var warnings []strictjson.Warning
	for _, name := range ignored {
		warnings = append(warnings, strictjson.UnknownMember(fault.Pointer(path, name), name, slices.Sorted(maps.Keys(known)), nil))
	}
	return warnings
}
