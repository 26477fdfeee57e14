package channel

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// readyPayload is the payload of the first frame of a connection.
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

// message returns a message from the service to the browser without a payload.
func (c *Connection) message(t wire.MessageType, at time.Time) wire.ChannelMessage {
	return wire.ChannelMessage{
		Type: t, SessionID: c.session.SessionID, MessageID: uuid.NewString(), Timestamp: at.UnixMilli(), Direction: wire.ToBrowser,
	}
}

// frame encodes a message from the service to the browser.
func (c *Connection) frame(t wire.MessageType, payload any) []byte {
	m := c.message(t, c.service.now())
	if to, _ := m.Payload(); to != nil {
		*to = encode(payload)
	}
	return m.Append(nil)
}

// ack encodes the acknowledgement of a frame.
func (c *Connection) ack(messageID string, now time.Time) []byte {
	m := c.message(wire.TypeStatus, now)
	m.Status = jsontext.Value(`{"event":"ack","messageId":"` + messageID + `"}`)
	return m.Append(nil)
}

// frameEntry encodes the stream entry of a frame. It gives the same bytes as
// entry, faster.
func (c *Connection) frameEntry(m *wire.ChannelMessage, at time.Time) []byte {
	payload, _ := m.Payload()
	b := make([]byte, 0, len(*payload)+2*len(c.session.SessionID)+256)
	b = append(b, `{"kind":"frame","channelId":"`...)
	b = append(b, c.session.SessionID...)
	b = append(b, `","at":`...)
	b = strconv.AppendInt(b, at.UnixMilli(), 10)
	b = append(b, `,"message":`...)
	b = m.Append(b)
	return append(b, '}')
}

// entry encodes a stream entry of this channel.
func (c *Connection) entry(e wire.Entry) []byte {
	e.ChannelID, e.At = c.session.SessionID, c.service.now().UnixMilli()
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

// withStreamID inserts a message's cursor at the start of its envelope.
func withStreamID(m Message) []byte {
	id := m.Cursor.String()
	b := make([]byte, 0, len(m.JSON)+len(id)+16)
	b = append(b, `{"streamId":"`...)
	b = append(b, id...)
	b = append(b, `",`...)
	return append(b, bytes.TrimPrefix(m.JSON, []byte{'{'})...)
}
