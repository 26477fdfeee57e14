package callback

import (
	"cmp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Limits of a bot's body. The entry of each message contains a copy of the sender
// and the conversation, so without a limit a small body could fill the stream.
const (
	maxMessages    = 500
	maxCopiedBytes = 4 << 20 // of sender and conversation, over all messages
)

// botBody is the body of a bot.
type botBody struct {
	Conversation struct {
		Identifier wire.Identifier `json:"identifier"`
	} `json:"conversation"`
	From     *wire.Party `json:"from"`
	Messages struct {
		Timestamp *string   `json:"timestamp"`
		Message   []message `json:"message" max:"500"` // maxMessages, for the error of strictjson
	} `json:"messages"`
	Metadata    jsontext.Value      `json:"metadata"`
	ChannelData []wire.ChannelDatum `json:"channelData"`
	NLUData     jsontext.Value      `json:"nluData"`
	Actions     jsontext.Value      `json:"actions"`
}

// message is one message of a bot. Numbers stay raw, so that long IDs are not
// rounded.
type message struct {
	MessageID jsontext.Value `json:"messageId"`
	RelatesTo jsontext.Value `json:"relatesTo"`
	Sequence  jsontext.Value `json:"sequence"`
	Content   *content       `json:"content"`

	// Set by check.
	index     int     // in the body
	order     float64 // Sequence, or 0
	commands  []command.Request
	operation *command.Operation
}

type content struct {
	TextMessage struct {
		TextPlain    string `json:"textPlain"`
		TextHTML     string `json:"textHtml"`
		TextMarkdown string `json:"textMarkdown"`
	} `json:"textMessage"`
	VoiceMessage   string         `json:"voiceMessage"`
	ActivityParams jsontext.Value `json:"activityParams"`
	Event          struct {
		Typing          *typing               `json:"typing"`
		Pause           jsontext.Value        `json:"pause"`
		MessageRead     *string               `json:"messageRead"`
		NoInputExpected *bool                 `json:"noInputExpected"`
		Custom          *command.ControlEvent `json:"custom"`
	} `json:"event"`

	disableTTSCache bool // from ActivityParams
}

type typing struct {
	Enable   *bool          `json:"enable"`
	Duration jsontext.Value `json:"duration,omitzero"`
}

// parseBot decodes the body of a bot, or the last line of its streamed answer, which needs no
// channel ID. The error has the given issues and those that parseBot adds.
func parseBot(data []byte, channelID string, streamed bool, issues *fault.Issues) (r Result, err error) {
	d := new(botBody)
	r.bot = d
	if r.allKnown, err = strictjson.DecodeKnown(data, d, issues); err != nil {
		return Result{}, err
	}
	d.check(channelID, streamed, issues)
	d.sortMessages()
	r.commands = command.ParseActions(d.Actions, "/actions", issues)
	hasID := func(m message) bool { return m.MessageID != nil }
	r.hasIdentity = d.Messages.Timestamp != nil || slices.ContainsFunc(d.Messages.Message, hasID)
	return r, issues.Err()
}

// check validates the body and decodes the parts of its messages that are raw JSON.
func (d *botBody) check(channelID string, streamed bool, issues *fault.Issues) {
	const idPath, timestampPath = "/conversation/identifier/id", "/messages/timestamp"
	if id := d.Conversation.Identifier.ID; id == "" && !streamed {
		issues.Missing(idPath, "The channel ID is required.")
	} else if id != "" && id != channelID {
		issues.Add(idPath, fault.IssueValue, "The channel ID differs from the one in the path.")
	}
	if s := d.Messages.Timestamp; s != nil && !validTimestamp(*s) && !issues.Has(timestampPath) {
		issues.Add(timestampPath, fault.IssueValue, "Use RFC 3339 or ISO 8601 with a time zone, such as 2026-11-15T09:30:00Z.")
	}
	n := len(d.Messages.Message)
	if n > maxMessages {
		issues.Add("/messages/message", fault.IssueTooMany, "At most %d messages are allowed. Send fewer.", maxMessages)
	}
	copied := len(d.Conversation.Identifier.Name)
	if d.From != nil {
		copied += len(d.From.Avatar) + len(d.From.Identifier.ID) + len(d.From.Identifier.Name)
	}
	if n*copied > maxCopiedBytes {
		issues.Add("/from", fault.IssueTooLong, "Sender and conversation name are copied to each message: with %d messages, they can have at most %d bytes. Shorten them or send fewer messages.", n, maxCopiedBytes/n)
	}
	for i := range d.Messages.Message {
		d.Messages.Message[i].index = i
		d.Messages.Message[i].check(fault.Pointer("/messages/message", i), issues)
	}
	strictjson.CheckObject(&d.Metadata, "/metadata", issues)
	for i := range d.ChannelData {
		if d.ChannelData[i].Key == nil {
			issues.Missing(fault.Pointer("/channelData", i)+"/key", "key is required.")
		}
	}
}

// sortMessages sorts the messages by their sequence if all have one.
func (d *botBody) sortMessages() {
	isUnnumbered := func(m message) bool { return m.Sequence == nil }
	if !slices.ContainsFunc(d.Messages.Message, isUnnumbered) {
		slices.SortStableFunc(d.Messages.Message, func(a, b message) int { return cmp.Compare(a.order, b.order) })
	}
}

// check validates the message at path.
func (m *message) check(path string, issues *fault.Issues) {
	checkNumber(&m.MessageID, path, "/messageId", issues)
	checkNumber(&m.RelatesTo, path, "/relatesTo", issues)
	m.order = checkNumber(&m.Sequence, path, "/sequence", issues)
	if m.Content == nil {
		issues.Missing(path+"/content", "content is required.")
		return
	}
	c, path := m.Content, path+"/content"
	strictjson.CheckObject(&c.ActivityParams, path+"/activityParams", issues)
	if c.ActivityParams.Kind() == '{' {
		var known struct {
			DisableTTSCache bool `json:"disableTtsCache"`
		}
		_ = strictjson.Decode(c.ActivityParams, &known, path+"/activityParams", issues) // cannot fail: the value was decoded before
		c.disableTTSCache = known.DisableTTSCache
	}
	if t := c.Event.Typing; t != nil {
		if t.Enable == nil {
			issues.Missing(path+"/event/typing/enable", "enable is required.")
		}
		checkNumber(&t.Duration, path, "/event/typing/duration", issues)
	}
	checkNumber(&c.Event.Pause, path, "/event/pause", issues)
	if c.Event.Custom != nil {
		m.commands, m.operation = c.Event.Custom.Parse(path+"/event/custom", issues)
	}
}

// checkNumber returns the value of a number, or 0 if it is absent. It replaces
// null with nil. The path of an issue is path+field.
func checkNumber(raw *jsontext.Value, path, field string, issues *fault.Issues) float64 {
	if !strictjson.Present(*raw) {
		*raw = nil
		return 0
	}
	f, ok := strictjson.Number(*raw)
	if !ok {
		issues.Add(path+field, fault.IssueType, "Must be a number in the range of a 64-bit float.")
	}
	return f
}

// textForm is a form of a message's text, such as HTML.
type textForm struct {
	name, source string
	toText       func(string) string
}

// forms returns all forms of the text. The first one that is not blank is used.
func (c *content) forms() [4]textForm {
	return [...]textForm{
		{wire.FormPlain, c.TextMessage.TextPlain, strings.TrimSpace},
		{wire.FormHTML, c.TextMessage.TextHTML, htmlToText},
		{wire.FormMarkdown, c.TextMessage.TextMarkdown, markdownToText},
		{wire.FormVoice, c.VoiceMessage, strings.TrimSpace},
	}
}

// text returns the text of the message and its form.
func (c *content) text() (text, form string) {
	for _, f := range c.forms() {
		if f.source == "" {
			continue
		}
		if text := f.toText(f.source); text != "" {
			return text, f.name
		}
	}
	return "", ""
}

// addTo adds the entries of the whole body, then those of each message: its text,
// its events and the commands of its control event. Of a streamed answer, the text is on the
// stream already, as parts: addTo adds an entry that ends them instead.
func (d *botBody) addTo(b *entryBuilder, streamed bool, parts int) {
	if d.Metadata != nil {
		b.add(wire.KindMetadata).Metadata = d.Metadata
	}
	if d.ChannelData != nil {
		b.add(wire.KindChannelData).ChannelData = d.ChannelData
	}
	if strictjson.Present(d.NLUData) {
		b.add(wire.KindNLUData).NLUData = d.NLUData
	}
	if streamed { // the entry that ends the parts
		e := b.add(wire.KindBotEvent)
		e.Event, e.Parts = wire.EventEmpty, parts
	}
	for i := range d.Messages.Message {
		d.addMessage(b, &d.Messages.Message[i], streamed)
	}
}

func (d *botBody) addMessage(b *entryBuilder, m *message, streamed bool) {
	c := m.Content
	if text, form := c.text(); text != "" && !streamed {
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
	if m.operation != nil { // before the commands, which may end the call
		e := b.add(wire.KindBotOperation)
		e.Event, e.Data = c.Event.Custom.Name, m.operation.Data
		if m.operation.Result != "" {
			e.Result = jsontext.Value(`"` + m.operation.Result + `"`) // needs no escaping: the result is one of a few names
		}
	}
	b.addCommands(m.commands)
}
