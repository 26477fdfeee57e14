package channel

import (
	"context"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

const (
	maxBatch         = 32 // frames per Append
	maxInvalidFrames = 9  // tolerated in a row
)

// batch holds durable frames until they are appended.
type batch struct {
	frames   []Frame
	arrivals []arrival // parallel to frames
}

// arrival is what acknowledging a frame needs.
type arrival struct {
	at     time.Time
	action []byte // payload of a browser_action, which is also recorded
}

// Handle processes one text frame from the browser. Durable frames wait for
// Flush.
func (c *Connection) Handle(ctx context.Context, raw []byte) {
	received := c.service.now()
	m, err := ParseFrame(raw, c.session.SessionID)
	if err != nil {
		// Responses are in order: without a readable ID, the client matches
		// this error to its frame by order alone.
		c.Flush(ctx)
		c.sendError(fault.From(err), m.MessageID)
		if c.invalid++; c.invalid > maxInvalidFrames {
			c.close(CloseInvalidFrames)
		}
		return
	}
	c.invalid = 0
	c.service.metrics.frames.WithLabelValues(string(m.Type), string(wire.ToARI)).Inc()
	if m.Type != wire.TypeAudio && !c.rate.AllowN(received, 1) {
		c.Flush(ctx)
		c.close(CloseRateLimited)
		return
	}
	switch m.Type {
	case wire.TypePing:
		c.reply(wire.TypePong, nil)
	case wire.TypePong:
	case wire.TypeAudio:
		if err := c.service.hub.SendAudio(ctx, c.session.SessionID, m.Append(nil)); err != nil {
			c.service.metrics.refused.WithLabelValues(string(fault.From(err).Code)).Inc()
		}
	default:
		c.batch.frames = append(c.batch.frames, Frame{
			MessageID: m.MessageID, Chat: m.Type == wire.TypeChat, Switch: textChatSwitch(m), Entry: c.frameEntry(&m, received),
		})
		c.batch.arrivals = append(c.batch.arrivals, arrival{received, m.BrowserAction})
		if len(c.batch.frames) == maxBatch {
			c.Flush(ctx)
		}
	}
}

// Flush appends the frames that Handle collected to the runtime stream and
// acknowledges them. The socket calls it when it has no more frames at hand.
func (c *Connection) Flush(ctx context.Context) {
	b := c.batch
	if len(b.frames) == 0 {
		return
	}
	defer func() {
		clear(b.frames)
		clear(b.arrivals)
		c.batch = batch{b.frames[:0], b.arrivals[:0]}
	}()
	outcomes, err := c.service.store.Append(ctx, c.session.SessionID, c.id, b.frames)
	if err != nil {
		// The frames may or may not be in the stream. Closing the socket keeps
		// later frames from overtaking them.
		for _, f := range b.frames {
			c.sendError(fault.From(err), f.MessageID)
		}
		c.close(CloseStoreUnavailable)
		return
	}
	c.acknowledge(b, outcomes)
}

// acknowledge responds to each frame of a batch with its outcome.
func (c *Connection) acknowledge(b batch, outcomes []Outcome) {
	now := c.service.now()
	acks := make([][]byte, 0, len(outcomes))
	for i, outcome := range outcomes {
		id, arrived := b.frames[i].MessageID, b.arrivals[i]
		switch outcome {
		case Appended, Duplicate:
			acks = append(acks, c.ack(id, now))
			c.service.metrics.ackSeconds.Observe(now.Sub(arrived.at).Seconds())
			if arrived.action != nil && outcome == Appended {
				c.service.sessions.AddAction(c.session.SessionID, id, arrived.at, arrived.action)
			}
		case ChatDisabled:
			c.sendError(fault.New(codeChatDisabled, "Text chat is disabled in this session."), id)
		case Backpressure:
			c.sendError(fault.New(codeBackpressure, "The call runtime is too far behind. Resend this frame later."), id)
		default: // NotOwner, Ended or Lost applies to the whole batch
			c.closeUnlessOwned(outcome)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(wire.TypeStatus, acks...)
}
