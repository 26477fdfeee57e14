package channel

import (
	"context"
	"math"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

const (
	maxBatch         = 32 // frames per Append
	maxInvalidFrames = 9  // tolerated in a row
)

type batch struct {
	frames   []Frame
	arrivals []arrival // parallel to frames
}

// arrival holds the data needed to acknowledge a frame.
type arrival struct {
	at     time.Time
	action []byte     // payload of a browser_action, which is also recorded
	span   trace.Span // nil if the frame is not traced
}

// Handle processes one text frame from the browser. Durable frames wait for
// Flush.
func (c *Connection) Handle(ctx context.Context, raw []byte) {
	received := c.service.now()
	m, err := ParseFrame(raw, c.session.SessionID)
	if (err != nil || m.Type != wire.TypeAudio) && !c.rate.AllowN(received, 1) {
		c.Flush(ctx)
		c.close(CloseRateLimited)
		return
	}
	if err != nil {
		c.reject(ctx, err, m.MessageID)
		return
	}
	c.invalid = 0
	c.service.metrics.frames.WithLabelValues(string(m.Type), string(wire.ToRuntime)).Inc()
	switch m.Type {
	case wire.TypePing:
		c.reply(wire.TypePong, nil)
	case wire.TypePong: // needs no reply
	case wire.TypeAudio:
		if c.audioRate == nil {
			c.audioRate = perSecond(c.service.limits.AudioBytesPerSecond)
		}
		if !c.audioRate.AllowN(received, len(raw)) {
			c.service.metrics.audioDropped.Inc()
			return
		}
		if err := c.service.store.SendAudio(ctx, c.session.SessionID, m.Append(nil)); err != nil {
			c.service.metrics.rejected.WithLabelValues(string(fault.From(err).Code)).Inc()
		}
	default:
		t, span := c.startFrame(&m)
		member := traceMember(t)
		f := Frame{MessageID: m.MessageID, Chat: m.Type == wire.TypeChat, Switch: m.TextChatSwitch(), Entry: c.frameEntry(&m, received, member)}
		if f.Chat {
			_, digest := auth.CallbackToken(c.service.key, c.session.TeamID, c.session.SessionID, m.MessageID, wire.ScopeItem)
			f.Item = digest + member
		}
		c.batch.frames = append(c.batch.frames, f)
		c.batch.arrivals = append(c.batch.arrivals, arrival{received, m.BrowserAction, span})
		if len(c.batch.frames) == maxBatch {
			c.Flush(ctx)
		}
	}
}

// HandleBinary rejects a binary frame.
func (c *Connection) HandleBinary(ctx context.Context) {
	if !c.AllowFrame() {
		c.Flush(ctx)
		c.close(CloseRateLimited)
		return
	}
	c.reject(ctx, fault.New(fault.MalformedJSON, "Binary frames are not supported. Send text frames."), "") // without a readable ID
}

// reject sends the error of an invalid frame. Responses are in order: without a
// readable ID, the client matches the error to its frame by order alone.
func (c *Connection) reject(ctx context.Context, err error, messageID string) {
	c.Flush(ctx)
	c.invalid++
	tooMany := c.invalid > maxInvalidFrames
	c.sendError(fault.From(err), messageID, tooMany)
	if tooMany {
		c.close(CloseInvalidFrames)
	}
}

// AllowFrame counts a frame that Handle does not get, such as a WebSocket ping. It
// returns false if the rate is exceeded.
func (c *Connection) AllowFrame() bool { return c.rate.AllowN(c.service.now(), 1) }

// Flush appends the frames that Handle collected to the runtime stream and
// acknowledges them. The socket calls it when it has no more frames at hand.
func (c *Connection) Flush(ctx context.Context) {
	b := c.batch
	if len(b.frames) == 0 {
		return
	}
	defer func() {
		for _, arrived := range b.arrivals {
			if arrived.span != nil {
				arrived.span.End()
			}
		}
		clear(b.frames)
		clear(b.arrivals)
		c.batch = batch{b.frames[:0], b.arrivals[:0]}
	}()
	outcomes, lastEntry, err := c.service.store.Append(ctx, c.owner(), b.frames)
	if err != nil {
		// The frames may or may not be in the stream. Closing the socket keeps
		// later frames from overtaking them.
		for _, f := range b.frames {
			c.sendError(fault.From(err), f.MessageID, true)
		}
		c.close(CloseStoreUnavailable)
		return
	}
	if lastEntry != "" {
		c.mu.Lock()
		c.lastEntry, c.hasFrames = lastEntry, true
		c.mu.Unlock()
	}
	c.acknowledge(b, outcomes)
}

func (c *Connection) acknowledge(b batch, outcomes []Outcome) {
	now := c.service.now()
	acks := make([][]byte, 0, len(outcomes))
	for i, outcome := range outcomes {
		id, arrived := b.frames[i].MessageID, b.arrivals[i]
		switch outcome {
		case Appended, Duplicate:
			acks = append(acks, c.ack(id, now))
			c.service.metrics.ackSeconds.Observe(now.Sub(arrived.at).Seconds())
			if arrived.action != nil { // also for a duplicate: the reply to the first may be lost
				c.service.sessions.AddAction(c.session.SessionID, id, arrived.at, arrived.action)
			}
		case ChatDisabled:
			c.sendError(fault.New(codeChatDisabled, "Text chat is disabled in this session."), id, false)
		case Backpressure:
			c.sendError(fault.New(codeBackpressure, "The call runtime is too far behind, or the key-value store is full. Resend this frame later."), id, false)
		default: // the connection does not own the session
			c.closeUnlessOwned(outcome)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(wire.TypeStatus, acks...)
}

// envelope is a received frame. Its timestamp may be missing or a fraction, and its
// trace may be anything.
type envelope struct {
	wire.ChannelMessage
	Timestamp *float64       `json:"timestamp"`
	Trace     jsontext.Value `json:"trace"`
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
	m := wire.ChannelMessage{Type: in.Type, SessionID: in.SessionID, MessageID: in.MessageID, Direction: in.Direction, Trace: parseTrace(in.Trace)}
	payload, name := m.Payload()
	if payload != nil {
		from, _ := in.Payload()
		*payload = *from
	}
	if len(m.MessageID) != 36 || uuid.Validate(m.MessageID) != nil {
		m.MessageID = ""
	}
	issues.Check(m.MessageID != "", "/messageId", fault.IssueValue, "messageId must be a UUID.")
	issues.Check(m.Type.Known(), "/type", fault.IssueValue,
		"type must be one of chat, browser_action, action, action_result, audio, status, control, reconnect, ping, pong, error.")
	issues.Check(m.SessionID == sessionID, "/sessionId", fault.IssueValue, "sessionId must be the session of this socket.")
	issues.Check(m.Direction == wire.ToRuntime, "/direction", fault.IssueValue, "direction must be to_ari: only messages from the runtime have to_browser.")
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
