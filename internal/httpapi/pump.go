package httpapi

import (
	"context"
	"errors"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

const (
	// writeWait is how long one write may hang before the socket is given up.
	writeWait = 10 * time.Second
	// closeWait is how long a peer may take to answer a close frame.
	closeWait = 2 * time.Second
	// writtenTogether is about how many bytes are handed to the kernel at once.
	writtenTogether = 16 << 10
	// beatTimeout bounds the store's part in a heartbeat.
	beatTimeout = 5 * time.Second
)

// pump moves frames between a WebSocket and its connection. An idle socket
// costs one goroutine, the reader's: the writer runs only while there is
// something to write, and pings come by a timer.
type pump struct {
	conn    *websocket.Conn
	line    *line // under conn
	channel *channel.Connection
	sockets *sockets
	limits  channel.Limits
	timer   *time.Timer

	mu      sync.Mutex
	queue   []queued
	control map[int][]byte // the ping and the pong that are to be sent next
	bytes   int64          // that count, of what is queued or being written
	writing bool
	closing channel.CloseCode // 0: open
	heard   time.Time
}

// queued is a frame that waits to be written.
type queued struct {
	frame   []byte
	counted int64 // bytes against the bound; none of history
}

// run serves a socket until it ends.
func (p *pump) run() {
	defer p.end()
	p.conn.SetReadLimit(p.limits.FrameBytes)
	p.conn.SetPingHandler(func(data string) error { p.sendControl(websocket.PongMessage, []byte(data)); return nil })
	p.conn.SetPongHandler(func(string) error { p.noteHeard(); return nil })
	p.startBeat()
	p.line.drained = func() { p.channel.Flush(p.sockets.ctx) }
	p.channel.Start(p)
	for {
		kind, frame, err := p.conn.ReadMessage()
		if errors.Is(err, websocket.ErrReadLimit) {
			p.noteClosed(channel.CloseTooBig) // the library has told the peer
		}
		if err != nil {
			p.channel.Flush(p.sockets.ctx) // what came before the end, with it
			return
		}
		p.noteHeard()
		if kind == websocket.TextMessage && !utf8.Valid(frame) {
			p.channel.Flush(p.sockets.ctx)
			p.Close(channel.CloseInvalidText)
			continue
		}
		if p.isClosing() {
			continue // only the peer's close frame is of interest now
		}
		if kind != websocket.TextMessage {
			frame = nil // refused like any frame that is not JSON
		}
		p.channel.Handle(p.sockets.ctx, frame)
	}
}

func (p *pump) end() {
	p.timer.Stop()
	_ = p.conn.Close()
	code := p.noteClosed(channel.CloseNormal)
	p.channel.Close()
	p.sockets.remove(p, code)
}

// noteClosed says that nothing is to be sent any more, and returns why: the first
// reason counts.
func (p *pump) noteClosed(code channel.CloseCode) channel.CloseCode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing == 0 {
		p.closing = code
	}
	p.queue, p.control = nil, nil
	return p.closing
}

// Send queues frames, to be written together; false: the queue is full.
func (p *pump) Send(frames ...[]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing != 0 {
		return true
	}
	added := int64(0)
	for _, frame := range frames {
		added += int64(len(frame))
	}
	if p.bytes+added > p.limits.QueuedBytes {
		return false
	}
	p.enqueue(true, frames...)
	return true
}

// Replay queues history, which is not counted.
func (p *pump) Replay(frames [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing == 0 && len(frames) > 0 {
		p.enqueue(false, frames...)
	}
}

// SendAudio queues a frame while the queue is less than half full.
func (p *pump) SendAudio(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing != 0 {
		return
	}
	if p.bytes+int64(len(frame)) > p.limits.QueuedBytes/2 {
		p.sockets.dropped.Inc()
		return
	}
	p.enqueue(true, frame)
}

// enqueue wakes the writer. The caller holds mu.
func (p *pump) enqueue(counted bool, frames ...[]byte) {
	for _, frame := range frames {
		q := queued{frame: frame}
		if counted {
			q.counted = int64(len(frame))
		}
		p.queue = append(p.queue, q)
		p.bytes += q.counted
	}
	p.wake()
}

// sendControl sends a ping or a pong in turn with the messages: beside them it
// would take its own short time from a message that a slow reader is still to get.
// Only the last of a kind is sent.
func (p *pump) sendControl(kind int, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing != 0 {
		return
	}
	if p.control == nil {
		p.control = map[int][]byte{}
	}
	p.control[kind] = data
	p.wake()
}

func (p *pump) wake() {
	if !p.writing {
		p.writing = true
		go p.write()
	}
}

// Close sends what is queued, then the code. A reader that is too slow for its
// queue gets the code alone, as far as that can still be sent.
func (p *pump) Close(code channel.CloseCode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing != 0 {
		return
	}
	p.closing = code
	wait := writeWait
	if code == channel.CloseSlowReader {
		p.queue, p.control = nil, nil
		wait = closeWait
		_ = p.conn.NetConn().SetWriteDeadline(time.Now().Add(wait)) // a write may hang already
	}
	_ = p.conn.SetReadDeadline(time.Now().Add(wait)) // nobody stays by reading drop by drop
	p.wake()
}

func (p *pump) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing != 0
}

// write sends what is queued and ends when nothing is left.
func (p *pump) write() {
	var written int64
	for {
		p.mu.Lock()
		p.bytes -= written
		var together []queued
		together, written = p.next()
		control, code := p.control, p.closing
		p.control = nil
		p.writing = len(together) > 0 || control != nil
		p.mu.Unlock()
		if len(together) == 0 && control == nil {
			if code != 0 {
				p.goodbye(code)
			}
			return
		}
		if err := p.put(together, control); err != nil {
			_ = p.conn.Close() // the reader sees it and ends
			return
		}
	}
}

// next takes what is to be written next, and says how many bytes of it count.
// The caller holds mu.
func (p *pump) next() (together []queued, counted int64) {
	n, bytes := 0, 0
	for n < len(p.queue) && bytes < writtenTogether {
		bytes += len(p.queue[n].frame)
		counted += p.queue[n].counted
		n++
	}
	together, p.queue = p.queue[:n:n], p.queue[n:]
	if len(p.queue) == 0 {
		p.queue = nil
	}
	return together, counted
}

func (p *pump) put(together []queued, control map[int][]byte) (err error) {
	deadline := time.Now().Add(writeWait)
	_ = p.conn.SetWriteDeadline(deadline)
	p.line.hold()
	for kind, data := range control {
		err = errors.Join(err, p.conn.WriteControl(kind, data, deadline))
	}
	for _, q := range together {
		err = errors.Join(err, p.conn.WriteMessage(websocket.TextMessage, q.frame))
	}
	return errors.Join(err, p.line.release())
}

// goodbye sends the close frame and gives the peer a moment to answer it.
func (p *pump) goodbye(code channel.CloseCode) {
	message := websocket.FormatCloseMessage(int(code), code.Reason())
	if err := p.conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeWait)); err != nil {
		_ = p.conn.Close()
		return
	}
	_ = p.conn.SetReadDeadline(time.Now().Add(closeWait))
}

func (p *pump) noteHeard() {
	p.mu.Lock()
	p.heard = time.Now()
	p.mu.Unlock()
}

// startBeat holds mu until beat can find its timer: it is due at once where the
// session ends while its socket opens.
func (p *pump) startBeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
	p.timer = time.AfterFunc(p.channel.UntilHeartbeat(), p.beat)
}

// beat pings the browser, renews the connection's hold on its session, and
// gives up a socket from which nothing whole was heard for two intervals.
func (p *pump) beat() {
	p.mu.Lock()
	silent := time.Since(p.heard) >= 2*p.limits.PingInterval()
	closing := p.closing != 0
	p.mu.Unlock()
	if closing {
		return
	}
	if silent {
		p.Close(channel.CloseNoPong)
		return
	}
	p.sendControl(websocket.PingMessage, nil)
	ctx, cancel := context.WithTimeout(p.sockets.ctx, beatTimeout)
	defer cancel()
	p.channel.Heartbeat(ctx)
	p.timer.Reset(p.channel.UntilHeartbeat())
}
