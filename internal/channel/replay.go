package channel

import (
	"context"

	"telapi/callruntime/wire"
)

// phase is what a connection does with the messages of its channel. It delivers each of
// them once and in order, from the history or as it arrives:
//
//	opening → firstReplay → live ⇄ catchingUp
type phase int

const (
	opening     phase = iota // there is no socket yet
	firstReplay              // the messages that the browser has missed are delivered from the history
	live                     // messages are delivered as they arrive
	catchingUp               // some did not arrive, and are delivered from the history
)

// replayPart delivers the next messages of the page, up to a quarter of the queue's
// size, which leaves the rest of the queue to live frames. The caller holds mu.
func (c *Connection) replayPart() {
	n, size := 0, int64(0)
	for n < len(c.page) && size < c.service.limits.QueuedBytes/4 {
		size += int64(len(c.page[n].JSON))
		n++
	}
	part := c.page[:n]
	if c.page = c.page[n:]; len(c.page) == 0 {
		c.page = nil
	}
	c.replayed += n
	c.service.metrics.replayed.Add(float64(n))
	c.queue(c.advance(part)...)
}

// endReplay delivers live messages from now on. After the first replay it reports whether the
// browser has received all that it missed. The caller holds mu.
func (c *Connection) endReplay() {
	if c.phase == firstReplay && c.resumes {
		recovered := c.attached.Recovered
		c.service.metrics.recovered(recovered)
		c.send(wire.TypeReconnect, c.frame(wire.TypeReconnect, reconnectPayload{recovered, c.replayed}))
	}
	if c.phase = live; c.behind {
		c.catchUp()
	}
}

// catchUp delivers the messages after the cursor from the history, in the background. In
// another phase than live it only sets behind: endReplay then calls it. The caller holds mu.
func (c *Connection) catchUp() {
	if c.phase != live {
		c.behind = true
		return
	}
	c.phase, c.behind = catchingUp, false
	c.service.run(func(ctx context.Context) {
		if c.replayMore(ctx) {
			c.service.metrics.recovered(true)
		}
	})
}

// replayNext continues when the client has received all queued frames, so that a replay
// needs no more memory than a page. The caller holds mu.
func (c *Connection) replayNext() {
	c.socket.AfterWrites(func() {
		c.service.run(func(ctx context.Context) { c.replayMore(ctx) })
	})
}

// replayMore delivers the rest of the page or reads the next one. It returns false if no
// messages are left, and closes the socket if the history no longer contains all of them.
func (c *Connection) replayMore(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.page) == 0 {
		from := c.cursor
		c.mu.Unlock()
		page, complete, err := c.service.store.Since(ctx, c.session.SessionID, from)
		c.mu.Lock()
		switch {
		case err != nil:
			c.socket.Close(CloseStoreUnavailable)
			return false
		case !complete:
			c.service.metrics.recovered(false)
			c.socket.Close(CloseHistoryLost)
			return false
		case len(page) == 0:
			c.endReplay()
			return false
		}
		c.page = page
	}
	c.replayPart()
	c.replayNext()
	return true
}
