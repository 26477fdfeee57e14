package channel

import (
	"bytes"
	"context"

	"telapi/callruntime/wire"
)

var _ Subscriber = (*Connection)(nil)

// Messages delivers durable messages if they follow the last one. If not, some
// were missed, and the history is asked for them. What was replayed already is
// passed over.
func (c *Connection) Messages(after Cursor, list []Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket == nil || c.recovering {
		c.behind = true
		return
	}
	for len(list) > 0 && list[0].Cursor.Epoch == c.position.Epoch && list[0].Cursor.Compare(c.position) <= 0 {
		after, list = list[0].Cursor, list[1:]
	}
	switch {
	case len(list) == 0:
	case after == c.position:
		c.queue(c.pass(list)...)
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

// Replaced ends this connection, unless it is the one that did it, or came after
// that one: a notice may be heard later than the store's answer to what followed.
func (c *Connection) Replaced(connectionID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case connectionID == c.id:
	case c.socket == nil:
		c.doubted = true
	default:
		c.confirm()
	}
}

// confirm asks the store whether the session is still this connection's.
func (c *Connection) confirm() {
	go func() { // the hub must not wait for the store
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		c.Heartbeat(ctx)
	}()
}

// Closed ends the connection with its channel.
func (c *Connection) Closed(string) {
	c.ended()
	go func() { // the hub must not wait for a database
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		c.service.ended(ctx, c.session.ID)
	}()
}

// replay delivers what was missed. The caller holds mu.
func (c *Connection) replay(messages []Message) {
	c.socket.Replay(c.pass(messages))
	c.service.metrics.replayed.Add(float64(len(messages)))
}

// pass moves on past messages and returns their frames. The caller holds mu.
func (c *Connection) pass(messages []Message) [][]byte {
	frames := make([][]byte, 0, len(messages))
	for _, m := range messages {
		c.service.metrics.frames.WithLabelValues(string(typeOf(m.JSON)), string(wire.ToBrowser)).Inc()
		c.position = m.Cursor
		frames = append(frames, withStreamID(m))
	}
	return frames
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
		for {
			c.mu.Lock()
			from := c.position
			c.mu.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
			missed, whole, err := c.service.store.Since(ctx, c.session.ID, from)
			cancel()

			c.mu.Lock()
			switch {
			case err != nil:
				c.socket.Close(CloseStoreUnavailable)
			case !whole:
				c.service.metrics.recoveries.WithLabelValues("failed").Inc()
				c.socket.Close(CloseHistoryLost)
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
