package command

import (
	"cmp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// MaxCommands is the number of managed commands that one body may have. Denied
// commands grow a hundredfold on their way to the runtime stream.
const MaxCommands = 100

// ParseActions decodes the actions of a body: one managed command or an array.
func ParseActions(raw jsontext.Value, path string, issues *fault.Issues) []wire.Command {
	switch raw.Kind() {
	case jsontext.KindInvalid, 'n':
		return nil
	case '[':
		var items []jsontext.Value
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil // cannot happen: raw is a decoded array
		}
		return ParseList(items, path, issues)
	default:
		return []wire.Command{parseCommand(raw, path, issues)}
	}
}

// ParseList decodes managed commands.
func ParseList(items []jsontext.Value, path string, issues *fault.Issues) []wire.Command {
	if len(items) > MaxCommands {
		issues.Add(path, fault.IssueTooMany, "At most %d commands are allowed.", MaxCommands)
		return nil
	}
	commands := make([]wire.Command, len(items))
	for i, raw := range items {
		commands[i] = parseCommand(raw, fault.Pointer(path, i), issues)
	}
	return commands
}

// parseCommand decodes a managed command. A command of an unknown type becomes
// an OtherCommand, which every policy denies, so that a newer provider's command
// does not make the messages in its body fail.
func parseCommand(raw jsontext.Value, path string, issues *fault.Issues) wire.Command {
	var head struct {
		Type      jsontext.Value `json:"type"`
		CommandID jsontext.Value `json:"commandId"`
	}
	if raw.Kind() == '{' {
		_ = json.Unmarshal(raw, &head) // cannot fail: raw is a decoded object
	}
	commandType := stringOf(head.Type)
	c := wire.NewCommand(commandType)
	if c == nil {
		return &wire.OtherCommand{Header: wire.Header{Type: cmp.Or(commandType, "unknown"), CommandID: stringOf(head.CommandID)}}
	}
	if err := strictjson.Decode(raw, c, path, issues); err != nil {
		issues.Add(path, fault.IssueValue, "Invalid command.")
	}
	c.Head().Type = commandType
	validator{path, issues}.command(c)
	return c
}

// stringOf returns the value of a JSON string, or "" for another type.
func stringOf(raw jsontext.Value) (s string) {
	if raw.Kind() == '"' {
		_ = json.Unmarshal(raw, &s) // cannot fail: raw is a decoded string
	}
	return s
}

// ControlEvent is a control event in the message of a bot.
type ControlEvent struct {
	Name  string `json:"name"`
	Value struct {
		TransferTarget *string `json:"transferTarget"`
		Target         *string `json:"target"`
		HangupReason   string  `json:"hangupReason"`
		wire.CallControl
	} `json:"value"`
}

// Commands checks all members of the event and converts it to commands.
func (e *ControlEvent) Commands(path string, issues *fault.Issues) []wire.Command {
	v, value := validator{path + "/value", issues}, &e.Value
	target := ""
	if value.Target != nil {
		target = *value.Target
		v.target(target, "/target")
	}
	if value.TransferTarget != nil { // takes precedence
		target = *value.TransferTarget
		v.target(target, "/transferTarget")
	}
	v.singleLine(value.HangupReason, "/hangupReason")
	params := v.callControl(&value.CallControl)

	switch e.Name {
	case "hangup":
		return []wire.Command{&wire.Hangup{Header: wire.Header{Type: "hangup"}, Reason: value.HangupReason, CallControl: value.CallControl}}
	case "transfer", "handover":
		return []wire.Command{&wire.Transfer{Header: wire.Header{Type: "transfer"}, Target: target, HangupReason: value.HangupReason, CallControl: value.CallControl}}
	case "config":
		return params.commands()
	case "":
		issues.Missing(path+"/name", "Must be hangup, transfer, handover or config.")
	default:
		issues.Add(path+"/name", fault.IssueValue, "Must be hangup, transfer, handover or config.")
	}
	return nil
}
