package callback

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// The right names for names that providers confuse.
var (
	botHints = map[string]string{"commands": "actions", "command": "actions"}
	llmHints = map[string]string{"actions": "commands", "action": "commands"}
)

// lintOutsideCommands returns a warning for each member of the body that has no effect, up to
// 100. The members of commands are not included, because CommandDecision lists them, except for
// those of a config event. All members of a tool's result are forwarded. The alternatives of
// a text in one message, such as HTML beside plain text, are not reported.
func (r Result) lintOutsideCommands(body []byte) (warnings []strictjson.Warning) {
	switch {
	case r.allKnown || r.toolResult != nil: // no unknown members
	case r.bot != nil:
		warnings = strictjson.UnknownMembers(body, r.bot, botHints)
	case r.failure != nil:
		warnings = strictjson.UnknownMembers(body, r.failure, nil)
	default:
		warnings = strictjson.UnknownMembers(body, llmBody{}, llmHints)
	}
	if r.streamed { // done and delta have an effect
		warnings = slices.DeleteFunc(warnings, func(w strictjson.Warning) bool { return w.Path == "/done" || w.Path == "/delta" })
	}
	warnings = append(warnings, r.ignored...)
	if r.bot != nil {
		warnings = append(warnings, r.lintEvents("config")...)
	}
	return warnings[:min(len(warnings), strictjson.MaxWarnings)]
}

// lint returns a warning for each member of the body that has no effect, also of
// commands, up to 100.
func (r Result) lint(body []byte) []strictjson.Warning {
	warnings := r.lintOutsideCommands(body)
	if r.bot != nil {
		warnings = append(warnings, r.lintEvents("hangup", "transfer", "handover")...)
		warnings = append(warnings, command.LintActions(r.bot.Actions, "/actions")...)
	} else if len(r.commands) > 0 {
		var doc struct {
			Commands jsontext.Value `json:"commands"`
		}
		_ = json.Unmarshal(body, &doc) // cannot fail: the body is valid
		warnings = append(warnings, command.LintActions(doc.Commands, "/commands")...)
	}
	return warnings[:min(len(warnings), strictjson.MaxWarnings)]
}

// lintEvents returns the warnings about the control events with the given names.
func (r Result) lintEvents(names ...string) (warnings []strictjson.Warning) {
	for _, m := range r.bot.Messages.Message {
		e := m.Content.Event.Custom // a valid message has content
		if e != nil && slices.Contains(names, e.Name) && len(warnings) < strictjson.MaxWarnings {
			warnings = append(warnings, e.Lint(fault.Pointer("/messages/message", m.index)+"/content/event/custom")...)
		}
	}
	return warnings
}
