package bot

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// The right names for names that providers confuse.
var (
	botHints = map[string]string{"commands": "actions", "command": "actions"}
	llmHints = map[string]string{"actions": "commands", "action": "commands"}
)

// Lint returns a warning for each member of a valid callback body that has no
// effect. All members of a tool's result are forwarded, so it gets no warnings.
func Lint(kind wire.WorkItemKind, body []byte) []strictjson.Warning {
	switch {
	case kind == wire.ToolItem:
		return nil
	case isErrorEnvelope(body):
		return strictjson.UnknownMembers(body, errorEnvelope{}, "", true, nil)
	case kind == wire.LLMItem:
		var doc struct {
			Commands jsontext.Value `json:"commands"`
		}
		_ = json.Unmarshal(body, &doc) // cannot fail: the body is valid
		return append(strictjson.UnknownMembers(body, llmBody{}, "", true, llmHints), command.LintActions(doc.Commands, "/commands")...)
	}
	var d document
	_ = json.Unmarshal(body, &d)
	warnings := strictjson.UnknownMembers(body, d, "", true, botHints)
	for i, m := range d.Messages.Message {
		if e := m.Content.Event.Custom; e != nil { // a valid message has content
			warnings = append(warnings, e.Lint(fault.Pointer("/messages/message", i)+"/content/event/custom")...)
		}
	}
	return append(warnings, command.LintActions(d.Actions, "/actions")...)
}
