package socket

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"telapi/internal/background"
	"telapi/internal/channel"
)

const (
	// socketWriteTimeout bounds one write to a socket.
	socketWriteTimeout = 10 * time.Second
	// closeTimeout is how long a peer may take to answer a close frame.
	closeTimeout = 2 * time.Second
	// heartbeatTimeout bounds the store operations of a heartbeat.
	heartbeatTimeout = 5 * time.Second
	// answerTimeout is how long the answer to a frame may make no progress. Operations of
	// the store have shorter timeouts: it only matters when something hangs.
	answerTimeout = 9 * time.Second
	// Of a client that was closed because it sent too much, at most discardBytes are
	// read per discardInterval.
	discardBytes    = 4 << 10
	discardInterval = 10 * time.Millisecond
)

// upgrader opens WebSockets that are cheap while idle: the read buffer is as small as
// possible, because batchConn has one, and a write buffer exists only during a write.
var upgrader = websocket.Upgrader{
	ReadBufferSize:  1,
	WriteBufferSize: 1024,
	WriteBufferPool: &sync.Pool{},
	CheckOrigin:     func(*http.Request) bool { return true }, // the caller of Set.Upgrade has checked it
}

// Connection is what a socket is connected to: a session's channel or the claims of a
// call runtime. Handle and Flush are called from one goroutine. A call runtime's also has
// the methods FrameBytes and Drain.
type Connection interface {
	Start(socket channel.Socket)
	Handle(ctx context.Context, frame []byte) // processes a text frame, or collects it until Flush
	HandleBinary(ctx context.Context)         // rejects a binary frame
	Flush(ctx context.Context)                // answers the collected frames, when no more have arrived
	AllowFrame() bool                         // counts a frame that Handle does not get; false: too many
	UntilHeartbeat() time.Duration
	Heartbeat(ctx context.Context)
	Close()
}

// socket moves frames between a WebSocket and its connection. An idle
// socket costs one goroutine, the reader. The writer runs only while frames are
// queued, and a timer sends pings.
type socket struct {
	Options
	ws         *websocket.Conn
	netConn    *batchConn // under ws
	connection Connection
	set        *Set

	mu          sync.Mutex
	timer       *time.Timer // of the heartbeat
	queue       sendQueue
	control     map[int][]byte    // the next ping and pong to send, by message type
	writing     bool              // the writer runs
	afterWrites func()            // called when the writer ends; may be nil
	closing     channel.CloseCode // code of the first close; 0 while the socket is open
	lastRead    time.Time
	unanswered  bool        // a frame was received that the connection has not handled
	watchdog    *time.Timer // disconnects a socket that does not answer; nil before the first frame
}

// run moves frames until the connection has ended. It and read, in which an idle
// socket waits, are small on purpose: the garbage collector shrinks a stack of 8 KB to
// 4 KB only if less than 1.2 KB are in use.
func (s *socket) run() {
	s.open()
	for s.read() {
	}
	s.end()
}

// open starts the heartbeat and sends the first frames.
func (s *socket) open() {
	s.ws.SetPingHandler(func(data string) error { s.sendControl(websocket.PongMessage, []byte(data)); return nil })
	s.ws.SetPongHandler(func(string) error { s.recordRead(); return nil })
	s.netConn.onDrained = s.flush
	if s.Limits.FramesPerSecond > 0 {
		s.netConn.budget = newFrameBudget(s.Limits, s.connection.AllowFrame)
	}
	s.connection.Start(s)
	// Start comes first: the first heartbeat is due at once if the session has expired,
	// and only a started channel connection can close the socket.
	s.mu.Lock() // the heartbeat reads timer
	defer s.mu.Unlock()
	s.lastRead = time.Now()
	s.timer = time.AfterFunc(s.connection.UntilHeartbeat(), s.heartbeat)
}

// read handles the next message. It returns false when the connection has ended.
func (s *socket) read() bool {
	kind, message, err := s.ws.NextReader()
	return s.handle(kind, message, err)
}

// handle handles a message, or the error instead of one, like read.
func (s *socket) handle(kind int, message io.Reader, err error) bool {
	var frame []byte
	if err == nil && !s.isClosing() {
		frame, err = io.ReadAll(io.LimitReader(message, s.frameBytes()+1))
	}
	if errors.Is(err, errFlood) {
		s.connection.Flush(s.set.ctx)
		s.Close(channel.CloseRateLimited)
		s.discardInput()
	} else if err != nil && isProtocolError(err) {
		s.markClosed(channel.CloseProtocolError) // the library has sent the close frame
	}
	if err != nil {
		return false
	}
	closing := s.recordRead()
	switch {
	case closing: // wait for the peer's close frame
	case int64(len(frame)) > s.frameBytes():
		s.connection.Flush(s.set.ctx)
		s.Close(channel.CloseTooBig)
	case kind != websocket.TextMessage:
		s.connection.HandleBinary(s.set.ctx)
	case !utf8.Valid(frame):
		s.connection.Flush(s.set.ctx)
		s.Close(channel.CloseInvalidText)
	default:
		s.expectAnswer()
		s.connection.Handle(s.set.ctx, frame)
	}
	return true
}

// expectAnswer starts the watchdog, which disconnects a browser whose frame is not answered
// in time, whatever hangs. The browser then reconnects and sends the frame again. A call
// runtime has requests that take longer, and limits them itself.
func (s *socket) expectAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Session == "" { // a call runtime
		return
	}
	s.unanswered = true
	if s.watchdog == nil {
		s.watchdog = time.AfterFunc(answerTimeout, s.timeOut)
	}
	s.recordProgress()
}

// timeOut disconnects a socket whose answers make no progress.
func (s *socket) timeOut() {
	s.mu.Lock()
	slow := s.writing && !s.unanswered
	s.mu.Unlock()
	if slow {
		s.markClosed(channel.CloseSlowReader)
	}
	s.disconnect()
}

// recordProgress restarts the watchdog while answers are missing. The caller holds mu.
func (s *socket) recordProgress() {
	switch {
	case s.watchdog == nil: // before the first frame
	case s.unanswered || s.writing:
		s.watchdog.Reset(answerTimeout)
	default:
		s.watchdog.Stop()
	}
}

// flush answers the frames that were received.
func (s *socket) flush() {
	s.connection.Flush(s.set.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unanswered = false
	s.recordProgress()
}

// frameBytes returns the maximum size of the next frame.
func (s *socket) frameBytes() int64 {
	if c, ok := s.connection.(interface{ FrameBytes() int64 }); ok {
		return c.FrameBytes()
	}
	return s.Limits.FrameBytes
}

// discardInput reads slowly from a client that sends too much, until it disconnects or
// the read deadline passes, which Close has set. If a connection is closed with unread
// input, the client may not receive the close frame.
func (s *socket) discardInput() {
	b := make([]byte, discardBytes)
	for background.Sleep(s.set.ctx, discardInterval) == nil {
		if _, err := s.netConn.Conn.Read(b); err != nil {
			return
		}
	}
}

// isProtocolError reports whether the WebSocket library has closed the connection because the
// peer violated the protocol. The library's errors for violations have no type.
func isProtocolError(err error) bool {
	_, closed := errors.AsType[*websocket.CloseError](err)
	return !closed && strings.HasPrefix(err.Error(), "websocket: ")
}

// end stores the last frames and releases the session.
func (s *socket) end() {
	s.flush()
	s.timer.Stop()
	_ = s.ws.Close()
	code := s.markClosed(channel.CloseNormal)
	s.connection.Close()
	s.set.remove(s, code)
}

// markClosed marks the socket as closing, unless it is closing already, and discards all
// queued frames. It returns the code with which the socket was closed first.
func (s *socket) markClosed(code channel.CloseCode) channel.CloseCode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == 0 {
		s.closing = code
	}
	s.discard()
	if s.watchdog != nil {
		s.watchdog.Stop()
	}
	return s.closing
}

// Close implements channel.Socket. It sends queued frames before the close frame,
// except to a client that reads too slowly.
func (s *socket) Close(code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return
	}
	s.closing = code
	timeout := socketWriteTimeout
	if code == channel.CloseSlowReader {
		s.discard()
		timeout = closeTimeout
		_ = s.ws.NetConn().SetWriteDeadline(time.Now().Add(timeout)) // a write may be blocked
	}
	_ = s.ws.SetReadDeadline(time.Now().Add(timeout)) // a peer that reads slowly must not keep the socket open
	s.startWriter()
}

// disconnect closes the connection without a close frame. The reader then ends
// the socket.
func (s *socket) disconnect() { _ = s.ws.NetConn().Close() }

// recordRead records that the peer is alive, so that the heartbeat does not close
// the socket. It returns whether the socket is closing.
func (s *socket) recordRead() (closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead = time.Now()
	return s.closing != 0
}

func (s *socket) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != 0
}

// heartbeat pings the browser, renews the ownership of the session, and closes a
// socket that has not received a complete frame for two intervals.
func (s *socket) heartbeat() {
	s.mu.Lock()
	if s.closing != 0 {
		s.mu.Unlock()
		return
	}
	s.set.running.Add(1)
	defer s.set.running.Done()
	silent := time.Since(s.lastRead) >= 2*s.Limits.PingInterval()
	s.mu.Unlock()
	if silent {
		s.Close(channel.CloseNoPong)
		return
	}
	s.sendControl(websocket.PingMessage, nil)
	ctx, cancel := context.WithTimeout(s.set.ctx, heartbeatTimeout)
	defer cancel()
	s.connection.Heartbeat(ctx)
	s.timer.Reset(s.connection.UntilHeartbeat())
}
