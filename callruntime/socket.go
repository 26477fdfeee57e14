package callruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
)

const (
	connectTimeout = 5 * time.Second // of a handshake, of the reply to hello and of a write
	helloID        = 1

	// Delays between attempts to connect. Claims must survive a few attempts.
	minDelay = 50 * time.Millisecond
	maxDelay = time.Second

	maxSilence = 2.5 // intervals between the service's pings without a frame: the connection is lost
)

// socket is one connection to the service.
type socket struct {
	conn    *websocket.Conn
	silence time.Duration // the connection is lost if nothing arrives for so long
	reason  error         // why the service closes the connection

	// Guarded by mu of the runtime.
	drained bool               // another connection is about to replace it
	out     chan []byte        // frames to write; closed at the end. Senders wait while it is full
	pending map[int64]*request // requests without a reply
}

// run keeps the runtime connected until it is closed or rejected for good, or another run
// replaces its connection, which the service drains.
func (r *Runtime) run() {
	delay, since := minDelay, time.Now()
	for !r.connect() {
		if time.Since(since) > maxDelay {
			delay = minDelay
		}
		select {
		case <-time.After(delay/2 + rand.N(delay)): //nolint:gosec // spreads the runtimes of an instance that restarts
		case <-r.ctx.Done():
		}
		delay, since = min(2*delay, maxDelay), time.Now()
	}
}

// connect replaces the connection and handles frames until it ends. It returns true if it is the
// last one of this run.
func (r *Runtime) connect() (last bool) {
	header := http.Header{"X-Api-Key": {r.opts.Key}}
	if !strings.HasPrefix(r.opts.Key, "tk_") {
		header = http.Header{"Authorization": {"Bearer " + r.opts.Key}}
	}
	dialer := websocket.Dialer{Proxy: http.ProxyFromEnvironment, Subprotocols: []string{wire.RuntimeProtocol}, HandshakeTimeout: connectTimeout}
	dialer.TLSClientConfig, dialer.NetDialContext = r.opts.TLS, r.opts.Dial
	conn, resp, err := dialer.DialContext(r.ctx, r.opts.URL, header) //nolint:bodyclose // the body is in memory
	if err != nil {
		if resp != nil {
			body, _ := io.ReadAll(resp.Body)
			err = fmt.Errorf("connect: %s: %s", resp.Status, body)
			r.stopIfRejected(resp.StatusCode, err)
		}
		r.mu.Lock()
		first := r.outage == nil
		r.outage = err
		r.mu.Unlock()
		if first && r.ctx.Err() == nil {
			r.opts.Log.Warn("cannot connect to the service; retrying", "url", r.opts.URL, "error", err)
		}
		return r.ctx.Err() != nil
	}
	s := &socket{conn: conn, silence: connectTimeout, out: make(chan []byte, maxQueued), pending: map[int64]*request{}}
	r.mu.Lock()
	if r.socket != nil {
		r.socket.close()
		r.leave(r.socket)
	}
	s.out <- r.hello()
	r.mu.Unlock()
	r.running.Go(s.write)
	r.read(s)
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave(s)
	close(s.out)
	return s.drained || r.ctx.Err() != nil
}

// leave makes the calls that wait on a connection repeat their requests on the next one. The
// service releases what abandoned ones have claimed. The caller holds mu.
func (r *Runtime) leave(s *socket) {
	for _, q := range s.pending {
		close(q.done)
	}
	s.pending = nil
	if r.socket == s {
		r.socket, r.connected = nil, make(chan struct{})
	}
}

// hello returns the first frame of a connection. The caller holds mu.
func (r *Runtime) hello() []byte {
	hello := wire.Hello{Request: wire.Request{ID: helloID, Op: wire.OpHello}, Name: r.opts.Name, ResumeMs: new(r.opts.Resume.Milliseconds()), Previous: r.previous}
	for _, c := range r.channels {
		hello.Resume = append(hello.Resume, wire.Resume{Channel: c.ID, Claim: c.Claim, Received: c.newest})
	}
	frame, _ := json.Marshal(hello) // of texts
	return frame
}

// welcome handles the reply to hello: it resumes the channels. The caller holds mu.
func (r *Runtime) welcome(s *socket, f wire.Frame) error {
	if _, unavailable := f.RetryAfter(); f.Error != nil && !unavailable {
		r.cancel(fmt.Errorf("hello: %w", f.Error))
	}
	var welcome wire.Welcome
	if err := json.Unmarshal(f.OK, &welcome); err != nil {
		return fmt.Errorf("unexpected reply: %w", err)
	}
	lost := maps.Clone(r.channels)
	for _, state := range welcome.Resumed {
		if c := lost[state.Channel]; c != nil {
			delete(lost, c.ID)
			_ = c.push(wire.Push{Event: wire.PushLost, At: state.LostAt})
		}
	}
	for _, c := range lost {
		c.close(ErrClaimLost) // or ended, if the last commit has taken effect
	}
	r.socket, r.outage, r.previous = s, nil, welcome.Connection
	s.silence = time.Duration(maxSilence * float64(welcome.PingIntervalMs) * float64(time.Millisecond))
	close(r.connected)
	return nil
}

// stopIfRejected ends the runtime if the HTTP status of a handshake, or the close code of a
// connection, says not to connect again.
func (r *Runtime) stopIfRejected(code int, err error) {
	switch {
	case code == 401 || code == 403 || code == 4500:
		r.cancel(fmt.Errorf("%w: %w", ErrUnauthorized, err))
	case code >= 400 && code < 500 && code != 408 && code != 429, // status
		code >= 1007 && code <= 1009, code >= 4500 && code < 5000: // close code
		r.cancel(err)
	}
}

func (s *socket) close() {
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_ = s.conn.Close()
}

// read handles frames until the connection ends.
func (r *Runtime) read(s *socket) {
	defer context.AfterFunc(r.ctx, s.close)()
	heard := func() { _ = s.conn.SetReadDeadline(time.Now().Add(s.silence)) }
	pong := s.conn.PingHandler()
	s.conn.SetPingHandler(func(data string) error { heard(); return pong(data) })
	for {
		heard()
		_, raw, err := s.conn.ReadMessage()
		if closed, is := errors.AsType[*websocket.CloseError](err); is {
			r.stopIfRejected(closed.Code, errors.Join(s.reason, err))
		}
		if err != nil || r.handle(s, raw) != nil {
			return
		}
	}
}

// handle handles a frame. Unknown events, replies and channels are ignored, and so are the
// frames of a connection that was left: the service repeats what is missing.
func (r *Runtime) handle(s *socket, raw []byte) error {
	var f wire.Frame
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c, q := r.channels[f.Channel], s.pending[f.ID]
	switch {
	case f.Event == "" && f.ID == helloID:
		return r.welcome(s, f)
	case f.Event == wire.PushError:
		s.reason = f.Error
	case r.socket != s:
	case q != nil:
		if q.reply = &f; q.claims() && f.Error == nil {
			r.claim(q)
		}
		delete(s.pending, q.ID)
		close(q.done)
	case f.Event == wire.PushDrain && !s.drained:
		s.drained = true
		r.running.Go(r.run)
	case c != nil:
		return c.push(f.Push)
	}
	return nil
}

// write writes frames until the connection ends.
func (s *socket) write() {
	for frame := range s.out {
		_ = s.conn.SetWriteDeadline(time.Now().Add(connectTimeout))
		if s.conn.WriteMessage(websocket.TextMessage, frame) != nil {
			_ = s.conn.Close() // ends read
		}
	}
}
