// Package bot decodes and validates the callback bodies of bots, language
// models and tools and converts them to entries of the runtime stream.
package bot

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

// Result is a decoded callback body.
type Result struct {
	// HasIdentity reports whether the body has message IDs or a timestamp, so
	// that an identical body is a repetition and not a second message.
	HasIdentity bool

	failure  jsontext.Value // the error object of any provider
	bot      *document
	content  *string // of a language model
	tool     jsontext.Value
	commands []wire.Command
}

// Parse decodes a callback body of the given kind. The body of a bot has to name
// the channel. The error is MALFORMED_JSON or a VALIDATION_ERROR that lists all
// issues.
func Parse(kind wire.WorkItemKind, data []byte, channelID string) (Result, error) {
	if isErrorEnvelope(data) {
		result, err := parseError(data)
		if kind != wire.ToolItem || !fault.Is(err, fault.Validation) { // a tool's result may resemble an error
			return result, err
		}
	}
	switch kind {
	case wire.BotItem:
		return parseBot(data, channelID)
	case wire.LLMItem:
		return parseLLM(data)
	case wire.ToolItem:
		return parseTool(data)
	default:
		return Result{}, fmt.Errorf("parse callback: unknown kind %q", kind)
	}
}

// Entries returns the entries for the runtime stream, in order, with the commands
// last. Each is a copy of base with its own fields set. Entries may be called
// again with another policy.
func (r Result) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	b := entryBuilder{base: base, policy: policy}
	switch {
	case r.failure != nil:
		b.add(wire.KindProviderError).Error = r.failure
	case r.bot != nil:
		b.entries = make([]wire.Entry, 0, 1+2*len(r.bot.Messages.Message)+len(r.commands))
		r.bot.addTo(&b)
	case r.tool != nil:
		b.add(wire.KindToolResult).Result = r.tool
	case r.content != nil:
		b.add(wire.KindLLMResult).Content = r.content
	}
	b.addCommands(r.commands)
	return b.entries
}

// entryBuilder collects entries that share a base.
type entryBuilder struct {
	base    wire.Entry
	policy  *command.Policy
	entries []wire.Entry
}

// add appends an entry. The pointer is valid until the next add.
func (b *entryBuilder) add(kind wire.EntryKind) *wire.Entry {
	b.entries = append(b.entries, b.base)
	e := &b.entries[len(b.entries)-1]
	e.Kind = kind
	return e
}

func (b *entryBuilder) addEvent(name string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		return // cannot happen: booleans, strings and validated numbers always encode
	}
	e := b.add(wire.KindBotEvent)
	e.Event, e.Value = name, raw
}

func (b *entryBuilder) addCommands(list []wire.Command) {
	for _, c := range list {
		d := b.policy.Decide(c, b.base.Source, b.base.Trace.TransactionID)
		kind := wire.KindCommand
		if d.Reason != "" {
			kind = wire.KindCommandDenied
		}
		e := b.add(kind)
		e.Command, e.Apply, e.Reason = wire.AnyCommand{Command: d.Command}, d.Apply, d.Reason
	}
}
