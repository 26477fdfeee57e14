package wire

import (
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AppendTo appends what json.Marshal makes of the entry. An entry has many
// members and few of them at a time: spelt out, those cost a third of what it
// takes to look at all of them by reflection.
func (e *Entry) AppendTo(buf []byte) ([]byte, error) {
	o := object{buf: append(buf, '{')}
	o.quoted("kind", string(e.Kind))
	o.quoted("channelId", e.ChannelID)
	o.name("at")
	o.buf = strconv.AppendInt(o.buf, e.At, 10)
	if t := e.Trace; t != (Trace{}) {
		o.open("trace")
		o.text("traceId", t.TraceID)
		o.text("parentSpanId", t.ParentSpanID)
		o.text("callId", t.CallID)
		o.text("transactionId", t.TransactionID)
		o.close()
	}
	o.text("source", e.Source)
	o.text("callbackId", e.CallbackID)
	o.text("workItemId", e.WorkItemID)
	o.value("message", e.Message, e.Message != nil)
	o.text("event", e.Event)
	o.raw("value", e.Value)
	e.BotMessage.appendTo(&o)
	o.value("command", e.Command.Command, e.Command.Command != nil)
	o.text("apply", string(e.Apply))
	o.text("reason", e.Reason)
	o.raw("metadata", e.Metadata)
	o.value("channelData", e.ChannelData, e.ChannelData != nil)
	o.raw("nluData", e.NLUData)
	o.value("content", e.Content, e.Content != nil)
	o.raw("result", e.Result)
	o.raw("error", e.Error)
	o.text("workItemKind", string(e.WorkItemKind))
	o.close()
	if o.err != nil {
		return nil, fmt.Errorf("encode an entry: %w", o.err)
	}
	return o.buf, nil
}

func (m *BotMessage) appendTo(o *object) {
	o.text("text", m.Text)
	o.text("form", m.Form)
	o.raw("messageId", m.MessageID)
	o.raw("relatesTo", m.RelatesTo)
	o.raw("sequence", m.Sequence)
	o.text("timestamp", m.Timestamp)
	if p := m.From; p != nil {
		o.open("from")
		if p.Identifier != (Identifier{}) {
			o.open("identifier")
			o.text("id", p.Identifier.ID)
			o.text("name", p.Identifier.Name)
			o.close()
		}
		o.text("avatar", p.Avatar)
		o.close()
	}
	o.text("conversationName", m.ConversationName)
	o.raw("activityParams", m.ActivityParams)
	o.value("disableTtsCache", m.DisableTTSCache, m.DisableTTSCache)
}

// object writes the members of a JSON object, leaving out those that are zero.
type object struct {
	buf []byte
	err error
}

func (o *object) name(name string) {
	if o.buf[len(o.buf)-1] != '{' {
		o.buf = append(o.buf, ',')
	}
	o.buf = append(o.buf, '"')
	o.buf = append(o.buf, name...)
	o.buf = append(o.buf, `":`...)
}

func (o *object) open(name string) {
	o.name(name)
	o.buf = append(o.buf, '{')
}

func (o *object) close() { o.buf = append(o.buf, '}') }

func (o *object) text(name, value string) {
	if value != "" {
		o.quoted(name, value)
	}
}

func (o *object) quoted(name, value string) {
	o.name(name)
	o.note(jsontext.AppendQuote(o.buf, value))
}

func (o *object) raw(name string, value jsontext.Value) {
	switch {
	case value == nil:
	case value.Kind() == '0': // nothing to take white space out of
		o.name(name)
		o.buf = append(o.buf, value...)
	default:
		o.name(name)
		o.note(jsontext.AppendFormat(o.buf, value))
	}
}

func (o *object) value(name string, value any, given bool) {
	if given {
		encoded, err := json.Marshal(value)
		o.name(name)
		o.note(append(o.buf, encoded...), err)
	}
}

func (o *object) note(buf []byte, err error) {
	if o.buf = buf; o.err == nil {
		o.err = err
	}
}
