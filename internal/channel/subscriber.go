package channel

import (
	"bytes"
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

var _ Subscriber = (*Connection)(nil)

// Messages delivers the messages that follow the connection's cursor and skips
// those that were replayed already. If the list neither contains the cursor nor
// starts right after it, Messages reads the history. It does not compare message
// numbers, because a failover that lost messages makes the store use theirs again.
func (c *Connection) Messages(after Cursor, list []Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != live {
		c.behind = true
		return
	}
	if i := slices.IndexFunc(list, func(m Message) bool { return m.Cursor == c.cursor }); i >= 0 {
		after, list = c.cursor, list[i+1:]
	}
	if after == c.cursor {
		c.queue(c.advance(list)...)
	} else {
		c.catchUp()
	}
}

// Gap reads messages from the history that may have been missed.
func (c *Connection) Gap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.catchUp()
}

// Audio delivers an audio frame.
func (c *Connection) Audio(json []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != opening && c.isObject(json) {
		c.socket.SendAudio(json)
	}
}

// Replaced checks the ownership in the background, since a subscriber must not
// block. The notice may be older than this connection, so it does not close the
// socket by itself. Before Start, the connection may not be attached yet.
func (c *Connection) Replaced(connectionID string) {
	if connectionID == c.id {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == opening {
		c.recheck = true
		return
	}
	c.checkSoon()
}

// Closed closes the socket and records that the session has ended.
func (c *Connection) Closed(string) {
	c.closeEnded()
	c.service.run(func(ctx context.Context) { c.service.recordEnd(ctx, c.session.SessionID) })
}

// advance moves the cursor past messages and returns their frames. It drops
// messages that are not JSON objects: a browser could not read them, and invalid
// UTF-8 would close its socket. The caller holds mu.
func (c *Connection) advance(messages []Message) [][]byte {
	frames := make([][]byte, 0, len(messages))
	for _, m := range messages {
		c.cursor = m.Cursor
		if !c.isObject(m.JSON) {
			continue
		}
		c.service.metrics.frames.WithLabelValues(string(typeOf(m.JSON)), string(wire.ToBrowser)).Inc()
		c.recordDelivery(m)
		frames = append(frames, withStreamID(m))
	}
	return frames
}

// isObject reports whether a runtime's message is one JSON object. It counts and
// logs others, without their content.
func (c *Connection) isObject(message jsontext.Value) bool {
	if bytes.HasPrefix(message, []byte{'{'}) && message.IsValid(jsontext.AllowDuplicateNames(true)) {
		return true
	}
	c.service.metrics.dropped.Inc()
	c.service.log.Warn("message of the runtime dropped: not a JSON object", "session_id", c.session.SessionID, "bytes", len(message))
	return false
}

// typeOf returns the type of a message, a JSON object, for the metrics. It only looks
// at the start of the message, where the type usually is: decoding a message would cost
// more than sending it.
func typeOf(json []byte) wire.MessageType {
	name, _, _ := bytes.Cut(bytes.TrimPrefix(json, []byte(`{"type":"`)), []byte{'"'})
	if t := wire.MessageType(name); t.Known() {
		return t
	}
	return "other"
}
