package channel

import (
	"bytes"
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

var _ Subscriber = (*Connection)(nil)

// Messages delivers the messages that follow the connection's position and skips
// those that were replayed already. If the list neither contains the position nor
// starts right after it, Messages reads the history. It does not compare message
// numbers, because a failover that lost messages makes the store use theirs again.
func (c *Connection) Messages(after Cursor, list []Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket == nil || c.recovering {
		c.behind = true
		return
	}
	if i := slices.IndexFunc(list, func(m Message) bool { return m.Cursor == c.position }); i >= 0 {
		after, list = c.position, list[i+1:]
	}
	if after == c.position {
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
	if c.socket != nil && c.isObject(json) {
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
	if c.socket == nil {
		c.recheck = true
		return
	}
	c.service.run(c.Heartbeat)
}

// Closed closes the socket and records that the session has ended.
func (c *Connection) Closed(string) {
	c.closeEnded()
	c.service.run(func(ctx context.Context) { c.service.recordEnd(ctx, c.session.SessionID) })
}

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

// endReplay lets live messages through again. The caller holds mu.
func (c *Connection) endReplay() {
	c.recovering = false
	if c.unreported {
		c.unreported = false
		recovered := c.attached.Recovered
		c.service.metrics.recovered(recovered)
		c.send(wire.TypeReconnect, c.frame(wire.TypeReconnect, reconnectPayload{recovered, c.replayed}))
	}
	if c.behind {
		c.catchUp()
	}
}

// advance moves the position past messages and returns their frames. It drops
// messages that are not JSON objects: a browser could not read them, and invalid
// UTF-8 would close its socket. The caller holds mu.
func (c *Connection) advance(messages []Message) [][]byte {
	frames := make([][]byte, 0, len(messages))
	for _, m := range messages {
		c.position = m.Cursor
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

// typeOf returns a message's type for the metrics. It only looks at the start of
// the message, where the type usually is: decoding a message would cost more
// than sending it.
func typeOf(json []byte) wire.MessageType {
	rest, ok := bytes.CutPrefix(json, []byte(`{"type":"`))
	name, _, found := bytes.Cut(rest, []byte{'"'})
	if t := wire.MessageType(name); ok && found && t.Known() {
		return t
	}
	return "other"
}

// catchUp replays the messages after the position in the background. Before Start and
// during another replay it only sets behind: endReplay then calls it again. The caller
// holds mu.
func (c *Connection) catchUp() {
	if c.socket == nil || c.recovering {
		c.behind = true
		return
	}
	c.recovering, c.behind = true, false
	c.service.run(func(ctx context.Context) {
		if found, complete := c.replayMore(ctx); found || !complete {
			c.service.metrics.recovered(complete)
		}
	})
}

// replayNext continues the replay when the client has received all queued frames, so
// that a replay needs no more memory than a page. The caller holds mu.
func (c *Connection) replayNext() {
	c.socket.AfterWrites(func() {
		c.service.run(func(ctx context.Context) {
			if _, complete := c.replayMore(ctx); !complete {
				c.service.metrics.recovered(false)
			}
		})
	})
}

// replayMore delivers the rest of the page or reads the next one. It closes the
// socket if the history no longer contains all messages.
func (c *Connection) replayMore(ctx context.Context) (found, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.page) == 0 {
		from := c.position
		c.mu.Unlock()
		page, complete, err := c.service.store.Since(ctx, c.session.SessionID, from)
		c.mu.Lock()
		switch {
		case err != nil:
			c.socket.Close(CloseStoreUnavailable)
			return false, true
		case !complete:
			c.socket.Close(CloseHistoryLost)
			return false, false
		case len(page) == 0:
			c.endReplay()
			return false, true
		}
		c.page = page
	}
	c.replayPart()
	c.replayNext()
	return true, true
}
