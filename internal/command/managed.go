package command

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// unknownType stands for the type of something that names none.
const unknownType = "unknown"

// ParseActions reads a body's actions: one managed command or a list of them.
func ParseActions(raw jsontext.Value, path string, issues *fault.Issues) []wire.Command {
	switch raw.Kind() {
	case jsontext.KindInvalid, 'n':
		return nil
	case '[':
		var items []jsontext.Value
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil // raw came out of a decoder, so it is well formed
		}
		return ParseList(items, path, issues)
	default:
		return []wire.Command{managed(raw, path, issues)}
	}
}

// MaxCommands is how many managed commands one body may carry. A short list of
// nonsense would otherwise grow a hundredfold on its way to the stream.
const MaxCommands = 100

// ParseList reads managed commands.
func ParseList(items []jsontext.Value, path string, issues *fault.Issues) []wire.Command {
	if len(items) > MaxCommands {
		issues.Add(path, fault.IssueTooMany, "There may be %d commands at the most.", MaxCommands)
		return nil
	}
	commands := make([]wire.Command, len(items))
	for i, raw := range items {
		commands[i] = managed(raw, fault.Pointer(path, i), issues)
	}
	return commands
}

// managed reads one managed command. What is none becomes an OtherCommand,
// which every policy denies: a body that also carries messages is not lost for
// an action that a newer provider has and this version has not.
func managed(raw jsontext.Value, path string, issues *fault.Issues) wire.Command {
	var head struct {
		Type      jsontext.Value `json:"type"`
		CommandID jsontext.Value `json:"commandId"`
	}
	if raw.Kind() == '{' {
		_ = json.Unmarshal(raw, &head) // well formed, and raw members take anything
	}
	c := wire.NewCommand(stringOf(head.Type))
	if c == nil {
		other := &wire.OtherCommand{Header: wire.Header{Type: stringOf(head.Type), CommandID: stringOf(head.CommandID)}}
		if other.Type == "" {
			other.Type = unknownType
		}
		return other
	}
	if err := strictjson.Decode(raw, c, path, issues); err != nil {
		issues.Add(path, fault.IssueValue, "This cannot be read.")
	}
	c.Head().Type = stringOf(head.Type)
	check(c, path, issues)
	return c
}

// stringOf is the string that raw holds, or nothing.
func stringOf(raw jsontext.Value) string {
	var s string
	if raw.Kind() == '"' {
		_ = json.Unmarshal(raw, &s)
	}
	return s
}
