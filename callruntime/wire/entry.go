package wire

import (
	"log/slog"

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
)

// Trace correlates one conversation across systems.
type Trace struct {
	TraceID       string `json:"traceId,omitzero"`
	ParentSpanID  string `json:"parentSpanId,omitzero"`
	CallID        string `json:"callId,omitzero"`
	TransactionID string `json:"transactionId,omitzero"`
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

	Event string         `json:"event,omitzero"` // session, bot_event
	Value jsontext.Value `json:"value,omitzero"` // bot_event

	BotMessage

	Command AnyCommand `json:"command,omitzero"` // command, command_denied
	Apply   Apply      `json:"apply,omitzero"`   // command
	Reason  string     `json:"reason,omitzero"`  // command_denied, channel_ended

	Metadata    jsontext.Value `json:"metadata,omitzero"`
	ChannelData []ChannelDatum `json:"channelData,omitzero"`
	NLUData     jsontext.Value `json:"nluData,omitzero"`
	Content     *string        `json:"content,omitzero"` // llm_result
	Result      jsontext.Value `json:"result,omitzero"`  // tool_result
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
