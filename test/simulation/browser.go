package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
)

// browser is a page with one session. It follows the rules of sdk/js: it resumes
// with its cursor, resends what was not acknowledged, and obeys close codes.
type browser struct {
	world  *world
	name   string
	info   channel.SessionInfo
	record *channelRecord
	path   *host // the network between the page and the instances
	rng    *rand.Rand
	events *mailbox[event]

	conn         *wireConn // nil without a connection
	connected    bool      // the ready frame has arrived
	conns        int
	tried        bool
	cursor       string // resume position; empty before the first one
	connectionID string
	readyCursor  string
	outbox       []*frameRecord    // not acknowledged, oldest first
	final        channel.CloseCode // after which the page does not reconnect
	nextSend     time.Time
	nextPing     time.Time
	deadline     time.Time // of the handshake or the pong
	retryAt      time.Time // when to connect
	attempts     int
}

// event is a chunk of a connection, or an order of the scheduler.
type event struct {
	conn    *wireConn
	chunk   chunk
	leave   time.Duration // drop the connection and stay away for this time
	compose bool          // send a frame
}

const (
	connectTimeout = 10 * time.Second
	pongTimeout    = 10 * time.Second
)

func (b *browser) run() {
	b.nextSend = time.Now().Add(b.between(0, 2*time.Second))
	b.retryAt = time.Now().Add(b.between(0, time.Second))
	for !b.world.over() {
		e, ok := b.events.wait(b.nextTimer(), b.world.done)
		switch {
		case !ok:
			b.timers()
		case e.compose:
			b.compose()
		case e.conn == nil:
			b.leave(e.leave)
		case e.conn == b.conn:
			b.receive(e.chunk)
		}
	}
	b.drop()
}

func (b *browser) between(least, most time.Duration) time.Duration {
	return least + time.Duration(b.rng.Int64N(int64(most-least)))
}

func (b *browser) nextTimer() time.Time {
	next := b.nextSend
	for _, t := range []time.Time{b.nextPing, b.deadline, b.retryAt} {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return next
}

func (b *browser) timers() {
	now := time.Now()
	if !b.nextSend.After(now) {
		b.nextSend = now.Add(b.between(100*time.Millisecond, b.world.pace))
		count := 1
		if b.rng.IntN(10) == 0 {
			count += b.rng.IntN(smallOutbox)
		}
		for range count {
			if !b.world.faultsEnded() {
				b.compose()
			}
		}
	}
	if !b.retryAt.IsZero() && !b.retryAt.After(now) {
		b.retryAt = time.Time{}
		b.connect()
	}
	if !b.deadline.IsZero() && !b.deadline.After(now) {
		b.world.trace(b.name, "gives its connection up")
		b.lost(0)
	}
	if !b.nextPing.IsZero() && !b.nextPing.After(now) {
		b.nextPing = now.Add(b.world.ping)
		b.transmit(wire.ChannelMessage{Type: wire.TypePing, MessageID: b.uuid()})
		if b.deadline.IsZero() {
			b.deadline = now.Add(pongTimeout)
		}
	}
}

func (b *browser) uuid() string {
	var raw [16]byte
	for i := range raw {
		raw[i] = byte(b.rng.Uint32())
	}
	return uuid.UUID(raw).String()
}

// compose adds a frame to the outbox and sends it if there is a connection.
func (b *browser) compose() {
	if b.final != 0 || len(b.outbox) >= smallOutbox {
		return
	}
	f := b.record.newFrame(b.uuid(), b.rng.IntN(4) == 0)
	f.padding = padding(b.rng)
	b.outbox = append(b.outbox, f)
	if b.connected {
		b.sendFrame(f)
	}
}

func (b *browser) sendFrame(f *frameRecord) {
	text := fmt.Appendf(nil, `{"text":"%s %d%s"}`, b.name, f.number, f.padding)
	m := wire.ChannelMessage{Type: wire.TypeChat, MessageID: f.id, Chat: text}
	if f.action {
		m = wire.ChannelMessage{Type: wire.TypeBrowserAction, MessageID: f.id, BrowserAction: fmt.Appendf(nil, `{"type":"click","action":"%s"}`, f.id)}
	}
	b.transmit(m)
}

func (b *browser) transmit(m wire.ChannelMessage) {
	m.SessionID, m.Direction, m.Timestamp = b.info.SessionID, wire.ToRuntime, time.Now().UnixMilli()
	b.conn.up.send(m.Append(nil))
}

func (b *browser) connect() {
	running := b.world.runningInstances()
	b.conns++
	if len(running) == 0 {
		b.lost(0)
		return
	}
	target := running[b.rng.IntN(len(running))]
	resume := b.cursor
	if b.tried && resume == "" {
		resume = channel.Start
	}
	conn := &wireConn{number: b.conns}
	b.conn, b.connected, b.deadline = conn, false, time.Now().Add(connectTimeout)
	conn.down = newPipe(b.path, toClient, b.conns, func(c chunk) { b.events.put(event{conn: conn, chunk: c}) })
	var socket *serverSocket
	succeeds := b.connectionID
	conn.up = newPipe(b.path, toServer, b.conns, func(c chunk) {
		if socket == nil { // the first chunk is the request
			socket = target.serve(conn, b.record, b.info, succeeds, resume)
			return
		}
		if c.eof {
			socket.hangup()
		}
		socket.feed(c)
	})
	b.world.trace(b.name, "connects to %s (attempt %d, resumes: %v)", target.host.name, b.conns, resume != "")
	conn.up.notify("request")
}

// receive handles a frame or a note from the instance.
func (b *browser) receive(c chunk) {
	switch note := c.note.(type) {
	case pingNote:
		b.conn.up.notify(pongNote{})
		return
	case closeNote:
		b.lost(note.code)
		return
	case rejection:
		b.world.trace(b.name, "is rejected: %s", note.code)
		if !slices.Contains([]fault.Code{fault.ServiceUnavailable, fault.SessionInUse, fault.RateLimitExceeded}, note.code) {
			b.final = 1
			b.record.rejected(note.code)
		}
		b.lost(0)
		return
	}
	if c.eof {
		b.world.trace(b.name, "loses its connection")
		b.lost(0)
		return
	}
	var m wire.ChannelMessage
	if err := json.Unmarshal(c.data, &m); err != nil {
		b.record.violation("%s got a frame that is not valid: %v", b.name, err)
		return
	}
	if m.StreamID != "" {
		b.record.received(m)
		b.cursor = m.StreamID
		return
	}
	b.handleServiceMessage(m)
}

func (b *browser) handleServiceMessage(m wire.ChannelMessage) {
	var status struct {
		Event        string `json:"event"`
		ConnectionID string `json:"connectionId"`
		StreamID     string `json:"streamId"`
		MessageID    string `json:"messageId"`
	}
	var reconnect struct {
		Recovered bool `json:"recovered"`
	}
	switch m.Type {
	case wire.TypePong:
		b.deadline = time.Time{}
	case wire.TypeReconnect:
		_ = json.Unmarshal(m.Reconnect, &reconnect)
		if !reconnect.Recovered {
			b.world.trace(b.name, "is notified that messages may be missing")
			b.record.browserNotified()
			b.cursor = b.readyCursor
		}
	case wire.TypeStatus:
		_ = json.Unmarshal(m.Status, &status)
		if status.Event == "ack" {
			b.acknowledged(status.MessageID)
			return
		}
		b.world.trace(b.name, "is ready")
		b.connected, b.connectionID, b.readyCursor = true, status.ConnectionID, status.StreamID
		b.record.connected(status.ConnectionID)
		if b.cursor == "" {
			b.cursor = status.StreamID
		}
		b.deadline, b.nextPing, b.attempts = time.Time{}, time.Now().Add(b.world.ping), 0
		for _, f := range b.outbox {
			b.sendFrame(f)
		}
	case wire.TypeError:
		b.world.trace(b.name, "gets error %s", m.Error)
	}
}

func (b *browser) acknowledged(id string) {
	for i, f := range b.outbox {
		if f.id == id {
			b.record.acknowledged(f)
			b.outbox = append(b.outbox[:i:i], b.outbox[i+1:]...)
			return
		}
	}
}

// lost ends the current connection. The page connects again, unless the code is
// final.
func (b *browser) lost(code channel.CloseCode) {
	if code != 0 {
		b.world.trace(b.name, "is closed with %d", code)
		b.record.closed(code)
	}
	b.drop()
	b.tried = true
	if code >= 4500 {
		b.final = code
	}
	if b.final == 0 {
		b.retryAt = time.Now().Add(b.between(0, min(8*time.Second, time.Second<<min(b.attempts, 10))))
		b.attempts++
	}
}

// drop closes the connection without a close frame.
func (b *browser) drop() {
	if b.conn != nil {
		b.conn.up.end()
		b.conn.down.cut()
	}
	if b.connected {
		b.record.disconnected()
	}
	b.conn, b.connected, b.nextPing, b.deadline = nil, false, time.Time{}, time.Time{}
}

// leave drops the connection for a while, as a phone does that loses its network
// or sleeps.
func (b *browser) leave(length time.Duration) {
	if b.final != 0 {
		return
	}
	length += b.between(0, 20*time.Millisecond) // several browsers must not return at the same instant
	b.world.trace(b.name, "leaves for %v", length)
	b.drop()
	b.tried = true
	b.record.left(time.Now().Add(length))
	b.retryAt = time.Now().Add(length)
}
