package httpapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
)

const (
	// socketWriteTimeout bounds one write to a socket or a stream.
	socketWriteTimeout = 10 * time.Second
	// closeTimeout is how long a peer may take to answer a close frame.
	closeTimeout = 2 * time.Second
	// heartbeatTimeout bounds the store operations of a heartbeat.
	heartbeatTimeout = 5 * time.Second
)

// upgrader opens WebSockets that are cheap while idle: buffers are small, and a
// write buffer exists only during a write.
var upgrader = websocket.Upgrader{
	ReadBufferSize:  1024,
	WriteBufferSize: 1024,
	WriteBufferPool: &sync.Pool{},
	CheckOrigin:     func(*http.Request) bool { return true }, // Server.admitSocket checks it against the endpoint
}

// socket moves frames between a WebSocket and its channel connection. An idle
// socket costs one goroutine, the reader. The writer runs only while frames are
// queued, and a timer sends pings.
type socket struct {
	ws      *websocket.Conn
	conn    *batchConn // under ws
	channel *channel.Connection
	set     *socketSet
	limits  channel.Limits

	mu       sync.Mutex
	timer    *time.Timer // of the heartbeat
	queue    sendQueue
	control  map[int][]byte // the next ping and pong to send
	writing  bool
	closing  channel.CloseCode // 0 while the socket is open
	lastRead time.Time
}

// run reads frames until the socket ends.
func (s *socket) run() {
	defer s.end()
	s.ws.SetReadLimit(s.limits.FrameBytes)
	s.ws.SetPingHandler(func(data string) error { s.sendControl(websocket.PongMessage, []byte(data)); return nil })
	s.ws.SetPongHandler(func(string) error { s.noteRead(); return nil })
	s.startHeartbeat()
	s.conn.onDrained = func() { s.channel.Flush(s.set.ctx) }
	s.channel.Start(s)
	for {
		kind, frame, err := s.ws.ReadMessage()
		if errors.Is(err, websocket.ErrReadLimit) {
			s.markClosed(channel.CloseTooBig) // the library has sent the close frame
		}
		if err != nil {
			s.channel.Flush(s.set.ctx)
			return
		}
		s.noteRead()
		if kind == websocket.TextMessage && !utf8.Valid(frame) {
			s.channel.Flush(s.set.ctx)
			s.Close(channel.CloseInvalidText)
			continue
		}
		if s.isClosing() {
			continue // wait for the peer's close frame
		}
		if kind != websocket.TextMessage {
			frame = nil // rejected like any frame that is not JSON
		}
		s.channel.Handle(s.set.ctx, frame)
	}
}

func (s *socket) end() {
	s.timer.Stop()
	_ = s.ws.Close()
	code := s.markClosed(channel.CloseNormal)
	s.channel.Close()
	s.set.remove(s, code)
}

// markClosed discards all queued frames and returns the code of the first close.
func (s *socket) markClosed(code channel.CloseCode) channel.CloseCode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == 0 {
		s.closing = code
	}
	s.discard()
	return s.closing
}

// Close implements channel.Socket. A reader that was too slow for its queue only
// gets the close frame, if that can still be sent.
func (s *socket) Close(code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing != 0 {
		return
	}
	s.closing = code
	wait := socketWriteTimeout
	if code == channel.CloseSlowReader {
		s.discard()
		wait = closeTimeout
		_ = s.ws.NetConn().SetWriteDeadline(time.Now().Add(wait)) // a write may be blocked
	}
	_ = s.ws.SetReadDeadline(time.Now().Add(wait)) // a peer that reads slowly must not keep the socket open
	s.startWriter()
}

// disconnect closes the connection without a close frame. The reader then ends
// the socket.
func (s *socket) disconnect() { _ = s.ws.NetConn().Close() }

func (s *socket) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != 0
}

func (s *socket) noteRead() {
	s.mu.Lock()
	s.lastRead = time.Now()
	s.mu.Unlock()
}

// startHeartbeat sets the timer under mu, because the heartbeat is due at once if
// the session expires while its socket opens.
func (s *socket) startHeartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead = time.Now()
	s.timer = time.AfterFunc(s.channel.UntilHeartbeat(), s.heartbeat)
}

// heartbeat pings the browser, renews the ownership of the session, and closes a
// socket that has not received a complete frame for two intervals.
func (s *socket) heartbeat() {
	s.mu.Lock()
	silent := time.Since(s.lastRead) >= 2*s.limits.PingInterval()
	closing := s.closing != 0
	if !closing {
		s.set.running.Add(1)
		defer s.set.running.Done()
	}
	s.mu.Unlock()
	if closing {
		return
	}
	if silent {
		s.Close(channel.CloseNoPong)
		return
	}
	s.sendControl(websocket.PingMessage, nil)
	ctx, cancel := context.WithTimeout(s.set.ctx, heartbeatTimeout)
	defer cancel()
	s.channel.Heartbeat(ctx)
	s.timer.Reset(s.channel.UntilHeartbeat())
}
