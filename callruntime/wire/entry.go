package wire

import (
	"fmt"
	"log/slog"
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// EntryKind is the type of an entry.
type EntryKind string

// The kinds of an entry.
const (
	KindFrame         EntryKind = "frame"
	KindSession       EntryKind = "session"
	KindBotMessage    EntryKind = "bot_message"
	KindBotEvent      EntryKind = "bot_event"
	KindBotOperation  EntryKind = "bot_operation"
	KindCommand       EntryKind = "command"
	KindCommandDenied EntryKind = "command_denied"
	KindMetadata      EntryKind = "metadata"
	KindChannelData   EntryKind = "channel_data"
	KindNLUData       EntryKind = "nlu_data"
	KindLLMResult     EntryKind = "llm_result"
	KindToolResult    EntryKind = "tool_result"
	KindProviderError EntryKind = "provider_error"
	KindTimeout       EntryKind = "timeout"
	KindChannelEnded  EntryKind = "channel_ended"
)

// Forms of a bot message's text.
const (
	FormPlain    = "plain"
	FormHTML     = "html"
	FormMarkdown = "markdown"
	FormVoice    = "voice"
)

// Events of a bot_event entry.
const (
	EventTyping          = "typing"
	EventPause           = "pause"
	EventMessageRead     = "messageRead"
	EventNoInputExpected = "noInputExpected"
	EventEmpty           = "empty" // the callback has no other content
)

// Trace connects the spans of one conversation across systems. ParentSpanID is the
// span that caused the entry or message.
type Trace struct {
	TraceID       string `json:"traceId,omitzero"`
	ParentSpanID  string `json:"parentSpanId,omitzero"`
	CallID        string `json:"callId,omitzero"`
	TransactionID string `json:"transactionId,omitzero"`
}

// Query returns the parameters that a runtime adds to a callback URL, such as
// ?traceId=…&parentSpanId=…, so that the callback belongs to this trace. It is empty
// without a trace.
func (t Trace) Query() string {
	query := url.Values{}
	for name, value := range map[string]string{"traceId": t.TraceID, "parentSpanId": t.ParentSpanID, "callId": t.CallID} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}

func (t Trace) appendTo(o *object) {
	if t == (Trace{}) {
		return
	}
	o.open("trace")
	o.text("traceId", t.TraceID)
	o.text("parentSpanId", t.ParentSpanID)
	o.text("callId", t.CallID)
	o.text("transactionId", t.TransactionID)
	o.close()
}

// TransactionHeader is the HTTP and SIP header of the transaction ID.
const TransactionHeader = "bot-trace-transaction-id"

// WebhooksPath is the path under which providers post callbacks:
// WebhooksPath + kind + "/" + channel ID, and "/" + work item ID except for bots.
const WebhooksPath = "/api/v1/webhooks/"

// Entry is one item of a channel's runtime stream. Kind determines which fields
// are set.
type Entry struct {
	Kind      EntryKind `json:"kind"`
	ChannelID string    `json:"channelId"`
	At        int64     `json:"at"` // Unix milliseconds
	Trace     Trace     `json:"trace,omitzero"`

	// Set if the entry comes from a callback.
	Source     string `json:"source,omitzero"`
	CallbackID string `json:"callbackId,omitzero"`
	WorkItemID string `json:"workItemId,omitzero"`

	Message *ChannelMessage `json:"message,omitzero"` // frame

	Event string `json:"event,omitzero"` // session, bot_event, bot_operation
	// Recovered is false in a session's connected event if the browser could not get
	// all messages that it missed; otherwise nil.
	Recovered *bool          `json:"recovered,omitzero"`
	Value     jsontext.Value `json:"value,omitzero"` // bot_event

	BotMessage

	Command AnyCommand `json:"command,omitzero"` // command, command_denied
	Apply   ApplyMode  `json:"apply,omitzero"`   // command
	Reason  string     `json:"reason,omitzero"`  // command_denied, channel_ended

	Metadata    jsontext.Value `json:"metadata,omitzero"`
	ChannelData []ChannelDatum `json:"channelData,omitzero"`
	NLUData     jsontext.Value `json:"nluData,omitzero"`
	Content     *string        `json:"content,omitzero"` // llm_result
	Result      jsontext.Value `json:"result,omitzero"`  // tool_result, bot_operation
	Data        jsontext.Value `json:"data,omitzero"`    // bot_operation
	Error       jsontext.Value `json:"error,omitzero"`   // provider_error

	WorkItemKind WorkItemKind `json:"workItemKind,omitzero"` // timeout
}

// LogValue identifies the entry without its content.
func (e Entry) LogValue() slog.Value {
	return slog.GroupValue(slog.String("kind", string(e.Kind)), slog.String("channelId", e.ChannelID),
		slog.String("callbackId", e.CallbackID), slog.String("workItemId", e.WorkItemID))
}

// BotMessage is the content of a bot_message entry. Numbers keep their original
// notation.
type BotMessage struct {
	Text             string         `json:"text,omitzero"`
	Form             string         `json:"form,omitzero"`
	MessageID        jsontext.Value `json:"messageId,omitzero"`
	RelatesTo        jsontext.Value `json:"relatesTo,omitzero"`
	Sequence         jsontext.Value `json:"sequence,omitzero"`
	Timestamp        string         `json:"timestamp,omitzero"`
	From             *Party         `json:"from,omitzero"`
	ConversationName string         `json:"conversationName,omitzero"`
	ActivityParams   jsontext.Value `json:"activityParams,omitzero"`
	DisableTTSCache  bool           `json:"disableTtsCache,omitzero"`
}

// Party is the sender of a bot message.
type Party struct {
	Identifier Identifier `json:"identifier,omitzero"`
	Avatar     string     `json:"avatar,omitzero"`
}

// Identifier identifies a party or a conversation.
type Identifier struct {
	ID   string `json:"id,omitzero"`
	Name string `json:"name,omitzero"`
}

// ChannelDatum is one item of outgoing channel data, forwarded unchanged.
type ChannelDatum struct {
	Key           *string        `json:"key"`
	Value         jsontext.Value `json:"value,omitzero"`
	SensitiveData *bool          `json:"sensitiveData,omitzero"`
	Other         jsontext.Value `json:",embed"`
}

// LogValue returns the key only: any value may be sensitive.
func (d ChannelDatum) LogValue() slog.Value {
	if d.Key == nil {
		return slog.Value{}
	}
	return slog.StringValue(*d.Key)
}

// AppendTo appends the same JSON as json.Marshal. Of the many members of an entry
// only a few are set, so this takes a third of the time of reflection.
func (e *Entry) AppendTo(buf []byte) ([]byte, error) {
	o := object{buf: append(buf, '{')}
	o.quoted("kind", string(e.Kind))
	o.quoted("channelId", e.ChannelID)
	o.name("at")
	o.buf = strconv.AppendInt(o.buf, e.At, 10)
	e.Trace.appendTo(&o)
	o.text("source", e.Source)
	o.text("callbackId", e.CallbackID)
	o.text("workItemId", e.WorkItemID)
	o.value("message", e.Message, e.Message != nil)
	o.text("event", e.Event)
	o.value("recovered", e.Recovered, e.Recovered != nil)
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
	o.raw("data", e.Data)
	o.raw("error", e.Error)
	o.text("workItemKind", string(e.WorkItemKind))
	o.close()
	if o.err != nil {
		return nil, fmt.Errorf("encode entry: %w", o.err)
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

// object writes a JSON object and omits zero members.
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
	o.set(jsontext.AppendQuote(o.buf, value))
}

func (o *object) raw(name string, value jsontext.Value) {
	switch {
	case value == nil:
	case value.Kind() == '0': // numbers contain no white space
		o.name(name)
		o.buf = append(o.buf, value...)
	default:
		o.name(name)
		o.set(jsontext.AppendFormat(o.buf, value))
	}
}

func (o *object) value(name string, value any, present bool) {
	if present {
		encoded, err := json.Marshal(value)
		o.name(name)
		o.set(append(o.buf, encoded...), err)
	}
}

func (o *object) set(buf []byte, err error) {
	if o.buf = buf; o.err == nil {
		o.err = err
	}
}
