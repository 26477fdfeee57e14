package channel

import (
	"bytes"
	"context"

	"telapi/callruntime/wire"
)

var _ Live = (*Connection)(nil)

// Message delivers a durable message if it follows the last one. If not, some
// were missed, and the history is asked for them.
func (c *Connection) Message(after Cursor, m Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.socket == nil || c.recovering:
		c.behind = true
	case m.Cursor.Epoch == c.position.Epoch && m.Cursor.Compare(c.position) <= 0:
		// Replayed already.
	case after == c.position:
		c.queue(c.pass(m))
	default:
		c.catchUp()
	}
}

// Gap asks the history for what may have been missed.
func (c *Connection) Gap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket == nil || c.recovering {
		c.behind = true
		return
	}
	c.catchUp()
}

// Audio delivers what is never stored.
func (c *Connection) Audio(json []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket != nil {
		c.socket.SendAudio(json)
	}
}

// Replaced ends this connection, unless it is the one that did it.
func (c *Connection) Replaced(connectionID string) {
	if connectionID != c.id {
		c.close(CloseReplaced)
	}
}

// Closed ends the connection with its channel.
func (c *Connection) Closed(string) {
	c.close(CloseEnded)
	go func() { // the hub must not wait for a database
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		c.service.ended(ctx, c.session.ID)
	}()
}

// replay delivers what was missed. The caller holds mu.
func (c *Connection) replay(messages []Message) {
	frames := make([][]byte, 0, len(messages))
	for _, m := range messages {
		frames = append(frames, c.pass(m))
	}
	c.socket.Replay(frames)
	c.service.metrics.replayed.Add(float64(len(messages)))
}

// pass moves on to a message and returns its frame. The caller holds mu.
func (c *Connection) pass(m Message) []byte {
	c.service.metrics.frames.WithLabelValues(string(typeOf(m.JSON)), string(wire.ToBrowser)).Inc()
	c.position = m.Cursor
	return withStreamID(m)
}

// typeOf finds a message's type for the metrics where it usually stands, at the
// beginning: decoding the whole message for it would cost more than sending it.
func typeOf(json []byte) wire.MessageType {
	rest, ok := bytes.CutPrefix(json, []byte(`{"type":"`))
	name, _, found := bytes.Cut(rest, []byte{'"'})
	if t := wire.MessageType(name); ok && found && t.Known() {
		return t
	}
	return "other"
}

// catchUp reads what follows the position and delivers it, all or nothing,
// until nothing new has come meanwhile. The caller holds mu.
func (c *Connection) catchUp() {
	c.recovering, c.behind = true, false
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		for {
			c.mu.Lock()
			from := c.position
			c.mu.Unlock()
			missed, whole, err := c.service.store.Since(ctx, c.session.ID, from)

			c.mu.Lock()
			switch {
			case err != nil:
				c.socket.Close(CloseStoreAway)
			case !whole:
				c.service.metrics.recoveries.WithLabelValues("failed").Inc()
				c.socket.Close(ClosePositionLost)
			default:
				c.service.metrics.recoveries.WithLabelValues("recovered").Inc()
				c.replay(missed)
			}
			again := c.behind && err == nil && whole
			c.recovering, c.behind = again, false
			c.mu.Unlock()
			if !again {
				return
			}
		}
	}()
}
