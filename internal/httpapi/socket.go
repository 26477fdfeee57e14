package httpapi

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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
	conn    *batchConn // the connection of ws
	channel *channel.Connection
	set     *socketSet
	limits  channel.Limits

	mu          sync.Mutex
	timer       *time.Timer // of the heartbeat
	queue       sendQueue
	control     map[int][]byte // the next ping and pong to send
	writing     bool
	afterWrites func()            // called when the writer ends; may be nil
	closing     channel.CloseCode // code of the first close; 0 while the socket is open
	lastRead    time.Time
}

func (s *socket) run() {
	defer s.end()
	s.ws.SetPingHandler(func(data string) error { s.sendControl(websocket.PongMessage, []byte(data)); return nil })
	s.ws.SetPongHandler(func(string) error { s.recordRead(); return nil })
	s.mu.Lock() // the first heartbeat, which is due at once if the session has expired, waits
	s.lastRead = time.Now()
	s.timer = time.AfterFunc(s.channel.UntilHeartbeat(), s.heartbeat)
	s.mu.Unlock()
	s.conn.onDrained = func() { s.channel.Flush(s.set.ctx) }
	s.channel.Start(s)
	for s.read() {
	}
	s.channel.Flush(s.set.ctx)
}

// read handles the next message. It returns false when the connection has ended.
func (s *socket) read() bool {
	kind, message, err := s.ws.NextReader()
	var frame []byte
	if err == nil && !s.isClosing() {
		frame, err = io.ReadAll(io.LimitReader(message, s.limits.FrameBytes+1))
	}
	if err != nil {
		if isProtocolError(err) {
			s.markClosed(channel.CloseProtocolError) // the library has sent the close frame
		}
		return false
	}
	closing := s.recordRead()
	switch {
	case closing: // wait for the peer's close frame
	case int64(len(frame)) > s.limits.FrameBytes:
		s.channel.Flush(s.set.ctx)
		s.Close(channel.CloseTooBig)
	case kind != websocket.TextMessage:
		s.channel.Handle(s.set.ctx, nil) // rejected like any frame that is not JSON
	case !utf8.Valid(frame):
		s.channel.Flush(s.set.ctx)
		s.Close(channel.CloseInvalidText)
	default:
		s.channel.Handle(s.set.ctx, frame)
	}
	return true
}

// isProtocolError reports whether the WebSocket library has closed the connection
// because the peer violated the protocol. Its errors for that have no type.
func isProtocolError(err error) bool {
	_, closed := errors.AsType[*websocket.CloseError](err)
	return !closed && strings.HasPrefix(err.Error(), "websocket: ")
}

func (s *socket) end() {
	s.timer.Stop()
	_ = s.ws.Close()
	code := s.markClosed(channel.CloseNormal)
	s.channel.Close()
	s.set.remove(s, code)
}

// markClosed marks the socket as closing unless it is, and discards all queued
// frames. It returns the code with which the socket was closed first.
func (s *socket) markClosed(code channel.CloseCode) channel.CloseCode {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == 0 {
		s.closing = code
	}
	s.discard()
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
	silent := time.Since(s.lastRead) >= 2*s.limits.PingInterval()
	s.mu.Unlock()
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

// socketSet owns the open sockets of this instance and their goroutines:
// net/http does not track connections after an upgrade.
type socketSet struct {
	ctx    context.Context // for store operations of sockets
	cancel context.CancelFunc

	open    prometheus.Gauge
	closed  *prometheus.CounterVec
	dropped prometheus.Counter

	running sync.WaitGroup // handshakes, readers, writers and heartbeats

	mu      sync.Mutex
	sockets map[*socket]struct{}
	drained context.CancelFunc // called when no socket is left; nil before drain
	ended   bool               // close was called
}

func newSocketSet(registry prometheus.Registerer) *socketSet {
	auto := promauto.With(registry)
	s := &socketSet{
		sockets: map[*socket]struct{}{},
		open:    auto.NewGauge(prometheus.GaugeOpts{Name: "telapi_sockets", Help: "Open WebSockets of this instance."}),
		closed:  auto.NewCounterVec(prometheus.CounterOpts{Name: "telapi_sockets_closed_total", Help: "Closed WebSockets by close code."}, []string{"code"}),
		dropped: auto.NewCounter(prometheus.CounterOpts{Name: "telapi_audio_dropped_total", Help: "Audio frames dropped because the client read too slowly."}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, code := range channel.CloseCodes() {
		s.closed.WithLabelValues(strconv.Itoa(int(code))) // start at 0, so that alerts see the first increase
	}
	return s
}

// begin reports whether a handshake may start. The caller then calls running.Done
// when the handshake has ended.
func (s *socketSet) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.running.Add(1)
	}
	return !s.ended
}

// start runs a socket. During a drain it closes the socket at once.
func (s *socketSet) start(socket *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = socket.ws.Close()
		socket.channel.Close()
		return
	}
	s.sockets[socket] = struct{}{}
	s.open.Inc()
	if s.drained != nil {
		socket.Close(channel.CloseRestart)
	}
	s.running.Go(socket.run) // not in the handler, so that net/http can free its buffers
}

func (s *socketSet) remove(socket *socket, code channel.CloseCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sockets, socket)
	s.open.Dec()
	s.closed.WithLabelValues(strconv.Itoa(int(code))).Inc()
	if s.drained != nil && len(s.sockets) == 0 {
		s.drained()
	}
}

// disconnect closes the connection of a session without a close frame, like a
// network failure. It returns false if this instance has no socket of the session.
func (s *socketSet) disconnect(sessionID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for socket := range s.sockets {
		if socket.channel.SessionID() == sessionID {
			socket.disconnect()
			return true
		}
	}
	return false
}

// drain closes all sockets with CloseRestart, at random times within window to keep
// clients from reconnecting all at once. It returns when no socket is left or
// ctx ends.
func (s *socketSet) drain(ctx context.Context, window time.Duration) {
	s.mu.Lock()
	ctx, s.drained = context.WithCancel(ctx)
	for socket := range s.sockets {
		time.AfterFunc(rand.N(window+1), func() { socket.Close(channel.CloseRestart) }) //nolint:gosec // jitter, not a secret
	}
	if len(s.sockets) == 0 {
		s.drained()
	}
	s.mu.Unlock()
	<-ctx.Done()
}

// close disconnects the remaining sockets and waits until all have ended.
func (s *socketSet) close() {
	s.cancel()
	s.mu.Lock()
	s.ended = true
	for socket := range s.sockets {
		socket.disconnect()
	}
	s.mu.Unlock()
	s.running.Wait()
}
