package bot

import (
	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/strictjson"
)

// Result is a decoded callback body.
type Result interface {
	// Entries returns the entries for the runtime stream, in order. Each is a
	// copy of base with its own fields set. Entries may be called again with
	// another policy.
	Entries(base wire.Entry, policy *command.Policy) []wire.Entry
	// HasIdentity reports whether the body has message IDs or a timestamp, so
	// that an identical body is a repetition and not a second message.
	HasIdentity() bool
}

// Entries implements Result: first the members of the body as a whole, then for
// each message its text, events and control event, then the actions.
func (d *document) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	b := entryBuilder{base, policy, make([]wire.Entry, 0, 1+2*len(d.Messages.Message)+len(d.actions))}
	if d.Metadata != nil {
		b.add(wire.KindMetadata).Metadata = d.Metadata
	}
	if d.ChannelData != nil {
		b.add(wire.KindChannelData).ChannelData = d.ChannelData
	}
	if strictjson.Present(d.NLUData) {
		b.add(wire.KindNLUData).NLUData = d.NLUData
	}
	for i := range d.Messages.Message {
		d.addMessage(&b, &d.Messages.Message[i])
	}
	b.addCommands(d.actions)
	return b.entries
}

func (d *document) addMessage(b *entryBuilder, m *message) {
	c := m.Content
	if text, form := c.text(); text != "" {
		e := b.add(wire.KindBotMessage)
		e.BotMessage = wire.BotMessage{
			Text: text, Form: form, MessageID: m.MessageID, RelatesTo: m.RelatesTo, Sequence: m.Sequence,
			From: d.From, ConversationName: d.Conversation.Identifier.Name,
			ActivityParams: c.ActivityParams, DisableTTSCache: c.disableTTSCache,
		}
		if d.Messages.Timestamp != nil {
			e.Timestamp = *d.Messages.Timestamp
		}
	}
	if c.Event.Typing != nil {
		b.addEvent(wire.EventTyping, c.Event.Typing)
	}
	if strictjson.Present(c.Event.Pause) {
		b.addEvent(wire.EventPause, c.Event.Pause)
	}
	if c.Event.MessageRead != nil {
		b.addEvent(wire.EventMessageRead, c.Event.MessageRead)
	}
	if c.Event.NoInputExpected != nil {
		b.addEvent(wire.EventNoInputExpected, c.Event.NoInputExpected)
	}
	b.addCommands(m.commands)
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
