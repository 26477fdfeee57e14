package wire

import (
	"log/slog"
	"net/url"

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
	KindLLMPart       EntryKind = "llm_part"
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
	EventEmpty           = "empty" // the callback has no other content, or a streamed answer has ended
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
// ?traceId=…&parentSpanId=…, so that the callback belongs to this trace, or "". The callback's
// transaction ID comes from its TransactionHeader, or else from the channel.
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

// TransactionHeader is the HTTP and SIP header of the transaction ID.
const TransactionHeader = "bot-trace-transaction-id"

// SessionPrefix is the start of the IDs of sessions. Runtimes give other IDs to the channels
// that they open.
const SessionPrefix = "ses_"

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
	WorkItemID string `json:"workItemId,omitzero"` // also of a timeout

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

	// Part is the number of a part of a streamed answer, from 1 on: llm_part, bot_message.
	Part int `json:"part,omitzero"`
	// Parts is the number of parts that came before: llm_result, and the bot_event that ends
	// a bot's streamed answer.
	Parts int `json:"parts,omitzero"`
}

// LogValue identifies the entry without its content.
func (e Entry) LogValue() slog.Value {
	return slog.GroupValue(slog.String("kind", string(e.Kind)), slog.String("channelId", e.ChannelID),
		slog.String("callbackId", e.CallbackID), slog.String("workItemId", e.WorkItemID))
}

// BotMessage is the content of a bot_message entry. An llm_part entry has its Text. Numbers keep their original
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
