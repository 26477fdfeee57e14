package wire

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MessageType names what a ChannelMessage carries.
type MessageType string

// The types of a ChannelMessage.
const (
	TypeChat          MessageType = "chat"
	TypeBrowserAction MessageType = "browser_action"
	TypeAction        MessageType = "action"
	TypeActionResult  MessageType = "action_result"
	TypeAudio         MessageType = "audio"
	TypeStatus        MessageType = "status"
	TypeControl       MessageType = "control"
	TypeReconnect     MessageType = "reconnect"
	TypePing          MessageType = "ping"
	TypePong          MessageType = "pong"
	TypeError         MessageType = "error"
)

// MessageTypes lists them all.
var MessageTypes = []MessageType{
	TypeChat, TypeBrowserAction, TypeAction, TypeActionResult, TypeAudio, TypeStatus,
	TypeControl, TypeReconnect, TypePing, TypePong, TypeError,
}

// Known tells whether t is one of MessageTypes.
func (t MessageType) Known() bool { return slices.Contains(MessageTypes, t) }

// Durable messages are stored, acknowledged and replayed. The others are gone
// once they were sent.
func (t MessageType) Durable() bool { return t != TypeAudio && t != TypePing && t != TypePong }

// Direction says who a ChannelMessage is for.
type Direction string

// The directions of a ChannelMessage.
const (
	ToBrowser Direction = "to_browser"
	ToARI     Direction = "to_ari"
)

// Directions lists both.
var Directions = []Direction{ToBrowser, ToARI}

// The commands of a control message that the service itself obeys.
const (
	EnableTextChat  = "enable_text_chat"
	DisableTextChat = "disable_text_chat"
)

// ChannelMessage is the envelope of /ws/session, in both directions. Exactly
// the payload object that Type names is set; ping and pong have none.
type ChannelMessage struct {
	Type      MessageType `json:"type"`
	SessionID string      `json:"sessionId"`
	MessageID string      `json:"messageId"`
	// StreamID is the cursor from which a browser can resume.
	StreamID  string    `json:"streamId,omitzero"`
	Timestamp int64     `json:"timestamp"` // Unix milliseconds
	Direction Direction `json:"direction"`

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

// Payload is the place of the object that m's type needs, and its JSON name;
// nil for types that carry none.
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

// Append appends the JSON of a message that has no streamId. All of the service's
// own frames and most entries of the stream pass here: written by hand, because no
// string of a checked envelope needs an escape, they cost a quarter.
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
	if payload != nil {
		b = append(b, `,"`...)
		b = append(b, name...)
		b = append(b, `":`...)
		b = append(b, *payload...)
	}
	return append(b, '}')
}
