package channel

import (
	"math"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// envelope is a frame as it comes in. Its timestamp may be missing, and may be a
// fraction where a page took it from a finer clock.
type envelope struct {
	wire.ChannelMessage
	Timestamp *float64 `json:"timestamp"`
}

// ParseFrame reads a browser's frame. Everything wrong with its envelope is in
// the error, and the message is returned as far as it could be read, so that
// the refusal can say which frame it means. Payload objects of other types than
// the frame's own are dropped.
func ParseFrame(raw []byte, sessionID string) (wire.ChannelMessage, error) {
	var in envelope
	var issues fault.Issues
	if err := strictjson.Decode(raw, &in, "", &issues); err != nil {
		return wire.ChannelMessage{}, err
	}
	if len(raw) == 0 || firstByte(raw) != '{' {
		issues.Add("", fault.IssueType, "A frame is a JSON object.")
		return wire.ChannelMessage{}, issues.Err()
	}
	m := onlyOwnPayload(in.ChannelMessage)
	if len(m.MessageID) != 36 || uuid.Validate(m.MessageID) != nil {
		m.MessageID = ""
		issues.Add("/messageId", fault.IssueValue, "messageId is a UUID.")
	}
	if !m.Type.Known() {
		issues.Add("/type", fault.IssueValue, "type is one of chat, browser_action, action, action_result, audio, status, control, reconnect, ping, pong, error.")
	}
	if m.SessionID != sessionID {
		issues.Add("/sessionId", fault.IssueValue, "sessionId is the session this socket was opened for.")
	}
	if m.Direction != wire.ToARI {
		issues.Add("/direction", fault.IssueValue, "A browser's frames have direction to_ari.")
	}
	if t := in.Timestamp; t != nil && *t >= 0 && *t <= math.MaxInt64/2 {
		m.Timestamp = int64(*t)
	} else {
		issues.Add("/timestamp", fault.IssueValue, "timestamp is Unix time in milliseconds.")
	}
	if payload, name := m.Payload(); payload != nil && payload.Kind() != '{' {
		issues.Add("/"+name, fault.IssueRequired, "A frame of type %s carries the object %s.", m.Type, name)
	}
	return m, issues.Err()
}

// onlyOwnPayload drops the objects that belong to other types.
func onlyOwnPayload(m wire.ChannelMessage) wire.ChannelMessage {
	clean := wire.ChannelMessage{
		Type: m.Type, SessionID: m.SessionID, MessageID: m.MessageID, Direction: m.Direction,
	}
	if from, _ := m.Payload(); from != nil {
		to, _ := clean.Payload()
		*to = *from
	}
	return clean
}

func firstByte(raw []byte) byte {
	for _, c := range raw {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c
		}
	}
	return 0
}

// textChatSwitch is the command of a control frame that the service obeys
// itself; empty for all others, which pass through.
func textChatSwitch(m wire.ChannelMessage) string {
	if m.Type != wire.TypeControl {
		return ""
	}
	var control struct {
		Command string `json:"command"`
	}
	if json.Unmarshal(m.Control, &control) != nil {
		return ""
	}
	switch control.Command {
	case wire.EnableTextChat, wire.DisableTextChat:
		return control.Command
	}
	return ""
}
