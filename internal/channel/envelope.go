package channel

import (
	"math"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// envelope is a received frame. Its timestamp may be missing or a fraction.
type envelope struct {
	wire.ChannelMessage
	Timestamp *float64 `json:"timestamp"`
}

// ParseFrame parses a frame from a browser. The error lists every issue of the
// envelope. The returned message is as complete as possible even on error, so
// that the error frame can refer to its ID. Payloads of other types than the
// frame's own are dropped.
func ParseFrame(raw []byte, sessionID string) (wire.ChannelMessage, error) {
	var in envelope
	var issues fault.Issues
	if err := strictjson.Decode(raw, &in, "", &issues); err != nil {
		return wire.ChannelMessage{}, err
	}
	if jsontext.Value(raw).Kind() != '{' {
		issues.Add("", fault.IssueType, "A frame must be a JSON object.")
		return wire.ChannelMessage{}, issues.Err()
	}
	m := wire.ChannelMessage{Type: in.Type, SessionID: in.SessionID, MessageID: in.MessageID, Direction: in.Direction}
	payload, name := m.Payload()
	if payload != nil {
		from, _ := in.Payload()
		*payload = *from
	}
	if len(m.MessageID) != 36 || uuid.Validate(m.MessageID) != nil {
		m.MessageID = ""
		issues.Add("/messageId", fault.IssueValue, "messageId must be a UUID.")
	}
	if !m.Type.Known() {
		issues.Add("/type", fault.IssueValue, "type must be one of chat, browser_action, action, action_result, audio, status, control, reconnect, ping, pong, error.")
	}
	if m.SessionID != sessionID {
		issues.Add("/sessionId", fault.IssueValue, "sessionId must be the session of this socket.")
	}
	if m.Direction != wire.ToARI {
		issues.Add("/direction", fault.IssueValue, "direction must be to_ari.")
	}
	if t := in.Timestamp; t != nil && *t >= 0 && *t <= math.MaxInt64/2 {
		m.Timestamp = int64(*t)
	} else {
		issues.Add("/timestamp", fault.IssueValue, "timestamp must be Unix time in milliseconds.")
	}
	if payload != nil && payload.Kind() != '{' {
		issues.Add("/"+name, fault.IssueRequired, "A frame of type %s needs the object %s.", m.Type, name)
	}
	return m, issues.Err()
}

// textChatSwitch returns the command of a control frame that switches text chat.
// It returns an empty string for all other frames.
func textChatSwitch(m wire.ChannelMessage) string {
	var control struct {
		Command string `json:"command"`
	}
	if m.Type != wire.TypeControl || json.Unmarshal(m.Control, &control) != nil {
		return ""
	}
	if control.Command == wire.EnableTextChat || control.Command == wire.DisableTextChat {
		return control.Command
	}
	return ""
}
