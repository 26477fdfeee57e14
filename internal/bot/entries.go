package bot

import (
	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/strictjson"
)

// Result is a provider's answer of any kind.
type Result interface {
	// Entries are what the answer puts on the stream, in order. base carries
	// what all of them share. It may be called again, with another policy.
	Entries(base wire.Entry, policy *command.Policy) []wire.Entry
}

// Entries implements Result: what the body says as a whole, then message by
// message its text, events and control event, then the actions.
func (b *Body) Entries(base wire.Entry, policy *command.Policy) []wire.Entry {
	s := stream{base: base, policy: policy}
	if b.failure != nil {
		s.add(wire.KindProviderError).Error = b.failure
		return s.entries
	}
	s.entries = make([]wire.Entry, 0, 1+2*len(b.Messages.Message)+len(b.actions)) // seldom more
	if b.Metadata != nil {
		s.add(wire.KindMetadata).Metadata = b.Metadata
	}
	if b.ChannelData != nil {
		s.add(wire.KindChannelData).ChannelData = b.ChannelData
	}
	if strictjson.Present(b.NLUData) {
		s.add(wire.KindNLUData).NLUData = b.NLUData
	}
	for i := range b.Messages.Message {
		b.addMessage(&s, &b.Messages.Message[i])
	}
	s.commands(b.actions)
	return s.entries
}

func (b *Body) addMessage(s *stream, m *message) {
	c := m.Content
	if text, form := c.text(); text != "" {
		e := s.add(wire.KindBotMessage)
		e.BotMessage = wire.BotMessage{
			Text: text, Form: form, MessageID: m.MessageID, RelatesTo: m.RelatesTo, Sequence: m.Sequence,
			From: b.From, ConversationName: b.Conversation.Identifier.Name,
			ActivityParams: c.ActivityParams, DisableTTSCache: c.disableTTSCache,
		}
		if b.Messages.Timestamp != nil {
			e.Timestamp = *b.Messages.Timestamp
		}
	}
	if t := c.Event.Typing; t != nil {
		s.event(wire.EventTyping, t)
	}
	if strictjson.Present(c.Event.Pause) {
		s.event(wire.EventPause, c.Event.Pause)
	}
	if c.Event.MessageRead != nil {
		s.event(wire.EventMessageRead, c.Event.MessageRead)
	}
	if c.Event.NoInputExpected != nil {
		s.event(wire.EventNoInputExpected, c.Event.NoInputExpected)
	}
	s.commands(m.commands)
}

// stream collects entries that share a base.
type stream struct {
	base    wire.Entry
	policy  *command.Policy
	entries []wire.Entry
}

// add returns an entry to be filled in before the next one is added.
func (s *stream) add(kind wire.EntryKind) *wire.Entry {
	s.entries = append(s.entries, s.base)
	e := &s.entries[len(s.entries)-1]
	e.Kind = kind
	return e
}

func (s *stream) event(name string, value any) {
	raw, err := json.Marshal(value)
	if err != nil {
		return // booleans, strings and checked numbers always encode
	}
	e := s.add(wire.KindBotEvent)
	e.Event, e.Value = name, raw
}

func (s *stream) commands(list []wire.Command) {
	for _, c := range list {
		d := s.policy.Decide(c, s.base.Source, s.base.Trace.TransactionID)
		kind := wire.KindCommand
		if d.Reason != "" {
			kind = wire.KindCommandDenied
		}
		e := s.add(kind)
		e.Command, e.Apply, e.Reason = wire.AnyCommand{Command: d.Command}, d.Apply, d.Reason
	}
}

// CommandReceipt tells a provider what became of one command.
type CommandReceipt struct {
	CommandID string `json:"commandId,omitzero"`
	Type      string `json:"type"`
	Decision  string `json:"decision"` // allowed or denied
	Reason    string `json:"reason,omitzero"`
}

// Receipt counts the messages among entries and lists what became of commands.
func Receipt(entries []wire.Entry) (messages int, commands []CommandReceipt) {
	commands = []CommandReceipt{}
	for i := range entries {
		switch e := &entries[i]; e.Kind {
		case wire.KindBotMessage, wire.KindLLMResult, wire.KindToolResult:
			messages++
		case wire.KindCommand, wire.KindCommandDenied:
			head := e.Command.Head()
			decision := "allowed"
			if e.Kind == wire.KindCommandDenied {
				decision = "denied"
			}
			commands = append(commands, CommandReceipt{head.CommandID, head.Type, decision, e.Reason})
		}
	}
	return messages, commands
}
