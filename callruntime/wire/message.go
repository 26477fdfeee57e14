package wire

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MessageType is the type of a ChannelMessage.
type MessageType string

// The types of a ChannelMessage.
const (
	TypeChat          MessageType = "chat"
	TypeBrowserAction MessageType = "browser_action" // of the user on the page
	TypeAction        MessageType = "action"         // that the recipient is to perform
	TypeActionResult  MessageType = "action_result"
	TypeAudio         MessageType = "audio"
	TypeStatus        MessageType = "status"
	TypeControl       MessageType = "control"
	TypeReconnect     MessageType = "reconnect"
	TypePing          MessageType = "ping"
	TypePong          MessageType = "pong"
	TypeError         MessageType = "error"
)

// MessageTypes lists all types.
var MessageTypes = []MessageType{
	TypeChat, TypeBrowserAction, TypeAction, TypeActionResult, TypeAudio, TypeStatus,
	TypeControl, TypeReconnect, TypePing, TypePong, TypeError,
}

// Known reports whether t is one of MessageTypes.
func (t MessageType) Known() bool { return slices.Contains(MessageTypes, t) }

// Durable reports whether messages of this type are stored, acknowledged and
// replayed. Others are sent once.
func (t MessageType) Durable() bool { return t != TypeAudio && t != TypePing && t != TypePong }

// Direction is the recipient of a ChannelMessage.
type Direction string

// The directions of a ChannelMessage.
const (
	ToBrowser Direction = "to_browser"
	ToRuntime Direction = "to_ari" // named after the Asterisk REST Interface of the first runtimes
)

// Directions lists both directions.
var Directions = []Direction{ToBrowser, ToRuntime}

// The commands of a control message that the service itself handles.
const (
	EnableTextChat  = "enable_text_chat"
	DisableTextChat = "disable_text_chat"
)

// ChannelMessage is the envelope of /ws/session, in both directions. Only the
// payload that belongs to Type is set; ping and pong have none.
type ChannelMessage struct {
	Type      MessageType `json:"type"`
	SessionID string      `json:"sessionId"`
	MessageID string      `json:"messageId"`
	// StreamID is the cursor with which a browser can resume.
	StreamID  string    `json:"streamId,omitzero"`
	Timestamp int64     `json:"timestamp"` // Unix milliseconds
	Direction Direction `json:"direction"`
	// Trace connects the spans of sender and receiver. It is optional.
	Trace Trace `json:"trace,omitzero"`

	Chat          jsontext.Value `json:"chat,omitzero"`
	BrowserAction jsontext.Value `json:"browserAction,omitzero"`
	Action        jsontext.Value `json:"action,omitzero"`
	ActionResult  jsontext.Value `json:"actionResult,omitzero"`
	Audio         jsontext.Value `json:"audio,omitzero"`
	Status        jsontext.Value `json:"status,omitzero"`
	Control       jsontext.Value `json:"control,omitzero"`
	Reconnect     jsontext.Value `json:"reconnect,omitzero"`
	Error         jsontext.Value `json:"error,omitzero"`
}

// Payload returns the field of m that holds the payload of its type, and the
// field's JSON name. It returns nil for types without payload.
func (m *ChannelMessage) Payload() (*jsontext.Value, string) {
	switch m.Type {
	case TypeChat:
		return &m.Chat, "chat"
	case TypeBrowserAction:
		return &m.BrowserAction, "browserAction"
	case TypeAction:
		return &m.Action, "action"
	case TypeActionResult:
		return &m.ActionResult, "actionResult"
	case TypeAudio:
		return &m.Audio, "audio"
	case TypeStatus:
		return &m.Status, "status"
	case TypeControl:
		return &m.Control, "control"
	case TypeReconnect:
		return &m.Reconnect, "reconnect"
	case TypeError:
		return &m.Error, "error"
	default:
		return nil, ""
	}
}

// TextChatSwitch returns EnableTextChat or DisableTextChat if m is a control message with this
// command; otherwise an empty string.
func (m *ChannelMessage) TextChatSwitch() string {
	var control struct {
		Command string `json:"command"`
	}
	if m.Type == TypeControl && json.Unmarshal(m.Control, &control) == nil &&
		(control.Command == EnableTextChat || control.Command == DisableTextChat) {
		return control.Command
	}
	return ""
}

// Append appends the JSON of a valid message without StreamID. Its type and IDs need no escaping, so
// it takes a quarter of the time of json.Marshal, which matters because every frame needs it.
func (m *ChannelMessage) Append(b []byte) []byte {
	payload, name := m.Payload()
	room := 128 + len(m.SessionID) + len(m.MessageID)
	if payload != nil {
		room += len(*payload)
	}
	b = slices.Grow(b, room)
	b = append(b, `{"type":"`...)
	b = append(b, m.Type...)
	b = append(b, `","sessionId":"`...)
	b = append(b, m.SessionID...)
	b = append(b, `","messageId":"`...)
	b = append(b, m.MessageID...)
	b = append(b, `","timestamp":`...)
	b = strconv.AppendInt(b, m.Timestamp, 10)
	b = append(b, `,"direction":"`...)
	b = append(b, m.Direction...)
	b = append(b, '"')
	if m.Trace != (Trace{}) {
		if trace, err := json.Marshal(m.Trace); err == nil {
			b = append(append(b, `,"trace":`...), trace...)
		}
	}
	if payload != nil {
		b = append(b, `,"`...)
		b = append(b, name...)
		b = append(b, `":`...)
		b = append(b, *payload...)
	}
	return append(b, '}')
}
