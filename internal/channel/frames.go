package channel

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// CloseCode is the status code of a WebSocket close frame. Clients reconnect
// after 1012 and 4000–4499, but not after 1007, 1008, 1009 and 4500–4999.
type CloseCode int

// Close codes of WebSockets.
const (
	CloseNormal        CloseCode = 1000
	CloseProtocolError CloseCode = 1002
	CloseInvalidText   CloseCode = 1007
	CloseTooBig        CloseCode = 1009
	CloseRestart       CloseCode = 1012

	CloseSlowReader       CloseCode = 4001
	CloseNoPong           CloseCode = 4002
	CloseHistoryLost      CloseCode = 4003
	CloseRateLimited      CloseCode = 4004
	CloseStoreUnavailable CloseCode = 4005

	CloseUnauthorized  CloseCode = 4500 // only of call runtimes
	CloseInvalidFrames CloseCode = 4501
	CloseReplaced      CloseCode = 4502
	CloseEnded         CloseCode = 4503 // ended or revoked
	CloseExpired       CloseCode = 4504
)

var reasons = map[CloseCode]string{
	CloseNormal:           "closed",
	CloseProtocolError:    "WebSocket protocol error",
	CloseInvalidText:      "text frame is not valid UTF-8",
	CloseTooBig:           "frame too large",
	CloseRestart:          "service is restarting; reconnect",
	CloseSlowReader:       "client reads too slowly; reconnect and resume",
	CloseNoPong:           "ping timeout; reconnect and resume",
	CloseHistoryLost:      "missed messages are no longer available; reconnect",
	CloseRateLimited:      "frame rate limit exceeded; reconnect and slow down",
	CloseStoreUnavailable: "message store unavailable; reconnect and resend",
	CloseUnauthorized:     "credential is invalid or was revoked",
	CloseInvalidFrames:    "too many invalid frames in a row",
	CloseReplaced:         "replaced by another connection",
	CloseEnded:            "session ended",
	CloseExpired:          "session expired",
}

// Reason returns the reason text of the close frame.
func (c CloseCode) Reason() string { return reasons[c] }

// CloseCodes returns all codes in ascending order.
func CloseCodes() []CloseCode { return slices.Sorted(maps.Keys(reasons)) }

type readyPayload struct {
	Event             string    `json:"event"`
	ConnectionID      string    `json:"connectionId"`
	StreamID          string    `json:"streamId"`
	Resumed           bool      `json:"resumed"`
	PingIntervalMs    int64     `json:"pingIntervalMs"`
	MaxMessageBytes   int64     `json:"maxMessageBytes"`
	TextChat          bool      `json:"textChat"`
	ExpiresAt         time.Time `json:"expiresAt"`
	ReconnectJitterMs int64     `json:"reconnectJitterMs"`
}

type reconnectPayload struct {
	Recovered bool `json:"recovered"`
	Count     int  `json:"count"`
}

type errorPayload struct {
	Code      fault.Code    `json:"code"`
	Message   string        `json:"message"`
	Fatal     bool          `json:"fatal"`
	RelatesTo string        `json:"relatesTo,omitempty"`
	Issues    []fault.Issue `json:"issues,omitempty"`
}

// Codes of error frames without an HTTP status.
const (
	codeChatDisabled fault.Code = "TEXT_CHAT_DISABLED"
	codeBackpressure fault.Code = "BACKPRESSURE"
)

func (c *Connection) message(t wire.MessageType, at time.Time) wire.ChannelMessage {
	return wire.ChannelMessage{
		Type: t, SessionID: c.session.SessionID, MessageID: uuid.NewString(), Timestamp: at.UnixMilli(), Direction: wire.ToBrowser,
	}
}

func (c *Connection) frame(t wire.MessageType, payload any) []byte {
	m := c.message(t, c.service.now())
	if to, _ := m.Payload(); to != nil {
		*to = encode(payload)
	}
	return m.Append(nil)
}

func (c *Connection) ack(messageID string, now time.Time) []byte {
	m := c.message(wire.TypeStatus, now)
	m.Status = jsontext.Value(`{"event":"ack","messageId":"` + messageID + `"}`)
	return m.Append(nil)
}

// frameEntry encodes the stream entry of a frame. It gives the same bytes as
// entry, in a third of the time.
func (c *Connection) frameEntry(m *wire.ChannelMessage, at time.Time, trace string) []byte {
	b := fmt.Appendf(nil, `{"kind":"frame","channelId":%q,"at":%d`, c.session.SessionID, at.UnixMilli())
	b = m.Append(append(append(b, trace...), `,"message":`...))
	return append(b, '}')
}

// traceMember returns the member trace of an entry after a comma, or "".
func traceMember(t wire.Trace) string {
	if t.TraceID == "" {
		return ""
	}
	return fmt.Sprintf(`,"trace":{"traceId":%q,"parentSpanId":%q}`, t.TraceID, t.ParentSpanID) // hexadecimal digits, which need no escaping
}

func (c *Connection) entry(e wire.Entry) []byte {
	e.ChannelID, e.At, e.Trace = c.session.SessionID, c.service.now().UnixMilli(), c.trace()
	return encode(e)
}

// encode marshals values that cannot fail: our own structs and JSON that was
// validated on receipt.
func encode(v any) jsontext.Value {
	b, err := json.Marshal(v)
	if err != nil {
		panic("channel: encode frame: " + err.Error())
	}
	return b
}

// withStreamID inserts a message's cursor at the start of its envelope, which is a
// JSON object.
func withStreamID(m Message) []byte {
	comma, members := ",", bytes.TrimLeft(m.JSON[1:], " \t\r\n")
	if members[0] == '}' {
		comma = ""
	}
	return append([]byte(`{"streamId":"`+m.Cursor.String()+`"`+comma), members...)
}
