package channel

import (
	"context"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// maxTaken bounds how many frames are appended at a time.
const maxTaken = 32

// batch is durable frames on their way to the runtime, and what else has to be
// known of each once it is there.
type batch struct {
	frames []Frame
	notes  []note
}

type note struct {
	at     time.Time
	action []byte // of a browser_action, which is kept for the record too
}

// Handle takes one text frame of the browser. What is durable waits for Flush.
func (c *Connection) Handle(ctx context.Context, raw []byte) {
	began := c.service.now()
	m, err := ParseFrame(raw, c.session.ID)
	if err != nil {
		// Where its id cannot be read, only the order of answers tells which
		// frame is meant.
		c.Flush(ctx)
		c.refuse(fault.From(err), m.MessageID)
		if c.bad++; c.bad > badFramesAllowed {
			c.close(CloseInvalidFrames)
		}
		return
	}
	c.bad = 0
	c.service.metrics.frames.WithLabelValues(string(m.Type), string(wire.ToARI)).Inc()
	if m.Type != wire.TypeAudio && !c.rate.AllowN(began, 1) {
		c.Flush(ctx)
		c.close(CloseRateLimited)
		return
	}
	switch m.Type {
	case wire.TypePing:
		c.reply(wire.TypePong, nil)
	case wire.TypePong:
	case wire.TypeAudio:
		if err := c.service.hub.SendAudio(ctx, c.session.ID, m.Append(nil)); err != nil {
			c.service.metrics.refused.WithLabelValues(string(fault.From(err).Code)).Inc()
		}
	default:
		c.taken.frames = append(c.taken.frames, Frame{
			MessageID: m.MessageID, Chat: m.Type == wire.TypeChat, Switch: textChatSwitch(m), Entry: c.frameEntry(&m, began),
		})
		c.taken.notes = append(c.taken.notes, note{began, m.BrowserAction})
		if len(c.taken.frames) == maxTaken {
			c.Flush(ctx)
		}
	}
}

// Flush puts the durable frames that Handle took on the runtime's stream and
// acknowledges them. The socket calls it when it has nothing more to hand over:
// frames that come together cost little more than one.
func (c *Connection) Flush(ctx context.Context) {
	taken := c.taken
	if len(taken.frames) == 0 {
		return
	}
	defer func() {
		clear(taken.frames)
		clear(taken.notes)
		c.taken = batch{taken.frames[:0], taken.notes[:0]}
	}()
	outcomes, err := c.service.store.Append(ctx, c.session.ID, c.id, taken.frames)
	if err != nil {
		// Not known to be on the stream: no acknowledgement, and no later
		// frame may overtake them.
		for _, f := range taken.frames {
			c.refuse(fault.From(err), f.MessageID)
		}
		c.close(CloseStoreUnavailable)
		return
	}
	c.answer(taken, outcomes)
}

// answer tells the browser what became of its frames.
func (c *Connection) answer(taken batch, outcomes []Outcome) {
	now := c.service.now()
	acks := make([][]byte, 0, len(outcomes))
	for i, outcome := range outcomes {
		id, note := taken.frames[i].MessageID, taken.notes[i]
		switch outcome {
		case Appended, Duplicate:
			acks = append(acks, c.ack(id, now))
			c.service.metrics.ackSeconds.Observe(now.Sub(note.at).Seconds())
			if note.action != nil && outcome == Appended {
				c.service.records.AddAction(c.session.ID, id, note.at, note.action)
			}
		case ChatDisabled:
			c.refuse(fault.New(codeChatDisabled, "Text chat is switched off in this session."), id)
		case Backpressure:
			c.refuse(fault.New(codeBackpressure, "The runtime is far behind. Send this again in a moment."), id)
		default: // holds for all of them
			c.lost(outcome)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(wire.TypeStatus, acks...)
}
