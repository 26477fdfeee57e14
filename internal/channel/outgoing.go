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

// ready is the first frame of every connection.
type ready struct {
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

type recovery struct {
	Recovered bool `json:"recovered"`
	Count     int  `json:"count"`
}

// problem is the payload of an error frame.
type problem struct {
	Code      fault.Code    `json:"code"`
	Message   string        `json:"message"`
	Fatal     bool          `json:"fatal"`
	RelatesTo string        `json:"relatesTo,omitempty"`
	Issues    []fault.Issue `json:"issues,omitempty"`
}

// Codes of error frames that have no HTTP status: they never leave a socket.
const (
	codeChatDisabled fault.Code = "TEXT_CHAT_DISABLED"
	codeBackpressure fault.Code = "BACKPRESSURE"
)

// frame makes a message of the service's own for the browser.
func (c *Connection) frame(t wire.MessageType, payload any) []byte {
	m := wire.ChannelMessage{
		Type: t, SessionID: c.session.ID, MessageID: uuid.NewString(),
		Timestamp: c.service.now().UnixMilli(), Direction: wire.ToBrowser,
	}
	if to, _ := m.Payload(); to != nil {
		*to = encode(payload)
	}
	return m.Append(nil)
}

// ack is the frame that acknowledges another.
func (c *Connection) ack(messageID string, now time.Time) []byte {
	m := wire.ChannelMessage{
		Type: wire.TypeStatus, SessionID: c.session.ID, MessageID: uuid.NewString(),
		Timestamp: now.UnixMilli(), Direction: wire.ToBrowser,
		Status: jsontext.Value(`{"event":"ack","messageId":"` + messageID + `"}`),
	}
	return m.Append(nil)
}

// frameEntry is the stream entry of a browser's frame.
func (c *Connection) frameEntry(m *wire.ChannelMessage, at time.Time) []byte {
	payload, _ := m.Payload()
	b := make([]byte, 0, len(*payload)+2*len(c.session.ID)+256)
	b = append(b, `{"kind":"frame","channelId":"`...)
	b = append(b, c.session.ID...)
	b = append(b, `","at":`...)
	b = strconv.AppendInt(b, at.UnixMilli(), 10)
	b = append(b, `,"message":`...)
	b = m.Append(b)
	return append(b, '}')
}

// entry is any other stream entry.
func (c *Connection) entry(e wire.Entry) []byte {
	e.ChannelID, e.At = c.session.ID, c.service.now().UnixMilli()
	return encode(e)
}

// encode marshals what cannot fail: structs of our own, and JSON that was
// checked when it came in.
func encode(v any) jsontext.Value {
	b, err := json.Marshal(v)
	if err != nil {
		panic("channel: a frame does not marshal: " + err.Error())
	}
	return b
}

// withStreamID writes a message's cursor into its envelope, ahead of the rest.
func withStreamID(m Message) []byte {
	id := m.Cursor.String()
	b := make([]byte, 0, len(m.JSON)+len(id)+16)
	b = append(b, `{"streamId":"`...)
	b = append(b, id...)
	b = append(b, `",`...)
	return append(b, bytes.TrimPrefix(m.JSON, []byte{'{'})...)
}
