package callruntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
)

const (
	connectTimeout = 5 * time.Second // of a handshake, of the reply to hello and of a write
	maxFrame       = 16 << 20        // bytes of a received frame
	maxQueued      = 256             // frames that wait to be written
)

// errDisconnected means that the connection cannot complete a request. Another one can.
var errDisconnected = errors.New("disconnected")

// finalError is a rejection after which reconnecting is of no use.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// socket is one connection to the service.
type socket struct {
	runtime  *Runtime
	conn     *websocket.Conn
	silence  time.Duration // the connection is lost if nothing arrives for so long
	out      chan []byte
	draining chan struct{} // holds a value when the service is about to close the connection
	done     chan struct{} // closed when the connection has ended
	err      error         // why; set before done is closed

	mu      sync.Mutex
	lastID  int64
	pending map[int64]*pending
	spare   int // abandoned accepts among pending
}

// request is a request that can be repeated on another connection.
type request struct {
	head    *wire.Request
	body    any                                                      // contains head
	onReply func(s *socket, ok jsontext.Value, abandoned bool) error // called before later frames are handled; may be nil
	ready   func(context.Context, *socket) error                     // waits until a connection can take the request; may be nil
	claims  bool                                                     // the reply matters even if its caller no longer waits
	filter  string                                                   // of an accept
}

// pending is a request that was not replied yet.
type pending struct {
	request
	id        int64
	abandoned bool // the caller no longer waits
	reply     chan error
}

// frame is any frame that the service sends: a push or a reply.
type frame struct {
	wire.Push
	ID int64          `json:"id,omitzero"`
	OK jsontext.Value `json:"ok,omitzero"`
}

// connect opens a connection and resumes all claims on it.
func (r *Runtime) connect() (*socket, error) {
	ctx, cancel := context.WithTimeout(r.ctx, connectTimeout)
	defer cancel()
	header := http.Header{"X-Api-Key": {r.opts.Key}}
	if !strings.HasPrefix(r.opts.Key, "tk_") {
		header = http.Header{"Authorization": {"Bearer " + r.opts.Key}}
	}
	dialer := websocket.Dialer{Proxy: http.ProxyFromEnvironment, Subprotocols: []string{wire.RuntimeProtocol}, TLSClientConfig: r.opts.TLS}
	conn, resp, err := dialer.DialContext(ctx, r.endpoint, header) //nolint:bodyclose // the body is in memory
	if err != nil {
		return nil, handshakeError(err, resp)
	}
	conn.SetReadLimit(maxFrame)
	s := &socket{
		runtime: r, conn: conn, silence: connectTimeout, out: make(chan []byte, maxQueued),
		draining: make(chan struct{}, 1), done: make(chan struct{}), pending: map[int64]*pending{},
	}
	conn.SetPingHandler(func(data string) error {
		s.heard()
		_ = conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(connectTimeout))
		return nil // if the connection is lost, the next write fails
	})
	r.running.Go(s.read)
	r.running.Go(s.write)
	hello := &wire.Hello{Request: wire.Request{Op: wire.OpHello}, Name: r.opts.Name, Resume: r.detach(), Previous: r.connection}
	if ms := r.opts.Resume.Milliseconds(); ms > 0 {
		hello.ResumeMs = &ms
	}
	err = s.do(ctx, request{head: &hello.Request, body: hello, onReply: func(s *socket, ok jsontext.Value, _ bool) error { return r.attach(s, ok) }})
	if err == nil {
		return s, nil
	}
	s.close()
	<-s.done
	var rejected *wire.RuntimeError
	switch {
	case errors.Is(err, errDisconnected):
		return nil, s.err
	case errors.As(err, &rejected) && rejected.Code != unavailable:
		err = &finalError{err}
	}
	return nil, fmt.Errorf("hello: %w", err)
}

// handshakeError returns why the service did not upgrade the connection. Errors of the
// client are final.
func handshakeError(err error, resp *http.Response) error {
	if resp == nil {
		return fmt.Errorf("connect: %w", err)
	}
	body, _ := io.ReadAll(resp.Body)
	err = fmt.Errorf("connect: %s: %s", resp.Status, body)
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return &finalError{fmt.Errorf("%w: %w", ErrUnauthorized, err)}
	case code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests:
		return &finalError{err}
	}
	return err
}

// closeError returns why a connection ended. It is final if the close code says not to
// reconnect. reported is what the service reported before.
func closeError(err error, reported *wire.RuntimeError) error {
	if reported != nil {
		err = fmt.Errorf("%w: %w", reported, err)
	}
	var closed *websocket.CloseError
	_ = errors.As(err, &closed)
	switch {
	case closed == nil:
		return err
	case closed.Code == 4500:
		return &finalError{fmt.Errorf("%w: %w", ErrUnauthorized, err)}
	case closed.Code == 1007 || closed.Code == 1008 || closed.Code == 1009 || closed.Code > 4500 && closed.Code <= 4999:
		return &finalError{err}
	}
	return err
}

// close ends the connection. Requests without a reply are repeated on the next one.
func (s *socket) close() {
	if s != nil {
		_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
		_ = s.conn.Close()
	}
}

// heard is called when anything arrives, pings included.
func (s *socket) heard() { _ = s.conn.SetReadDeadline(time.Now().Add(s.silence)) }

// read handles frames until the connection ends.
func (s *socket) read() {
	var reported *wire.RuntimeError
	for s.err == nil {
		s.heard()
		_, raw, err := s.conn.ReadMessage()
		var f frame
		if err == nil {
			err = json.Unmarshal(raw, &f)
		}
		switch {
		case err != nil:
			s.err = closeError(err, reported)
		case f.Event == "":
			s.answer(f)
		case f.Event == wire.PushError:
			reported = f.Error
		case f.Event == wire.PushDrain:
			select {
			case s.draining <- struct{}{}:
			default:
			}
		default:
			s.err = s.runtime.push(s, f.Push)
		}
	}
	s.runtime.mu.Lock()
	if s.runtime.current == s {
		s.runtime.current = nil
	}
	s.runtime.mu.Unlock()
	_ = s.conn.Close()
	close(s.done)
}

// write writes frames until the connection ends.
func (s *socket) write() {
	for {
		select {
		case raw := <-s.out:
			_ = s.conn.SetWriteDeadline(time.Now().Add(connectTimeout))
			if s.conn.WriteMessage(websocket.TextMessage, raw) != nil {
				_ = s.conn.Close() // ends read
			}
		case <-s.done:
			return
		}
	}
}

// push handles a push about a channel. Unknown events and channels are ignored.
func (r *Runtime) push(s *socket, p wire.Push) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.channels[p.Channel]
	switch {
	case c == nil:
	case p.Event == wire.PushEntry:
		return c.push(s, p)
	case p.Event == wire.PushLost:
		c.lose(p.At)
	case p.Event == wire.PushAudio && p.Message != nil:
		c.pushAudio(p.Message)
	case p.Event == wire.PushClaimLost && r.current == s && p.Claim == c.claim: // not if the next connection has it
		c.cancel(ErrClaimLost)
		delete(r.channels, c.ID)
	}
	return nil
}

// do sends a request and waits for the reply. An accept takes over an abandoned one.
func (s *socket) do(ctx context.Context, q request) error {
	p, raw, err := s.add(q)
	if err != nil {
		return err
	}
	if raw != nil {
		select {
		case s.out <- raw:
		case <-s.done:
		case <-ctx.Done():
			s.take(p.id)
			return context.Cause(ctx)
		}
	}
	select {
	case err = <-p.reply:
	case <-s.done:
		select {
		case err = <-p.reply:
		default:
			err = errDisconnected
		}
	case <-ctx.Done():
		if s.abandon(p.id) {
			return context.Cause(ctx)
		}
		err = <-p.reply
	}
	return err
}

// add adds a request to pending. It returns the request as JSON, or nil if it was sent
// already.
func (s *socket) add(q request) (p *pending, raw []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.filter != "" && s.spare > 0 {
		for _, p := range s.pending {
			if p.abandoned && p.filter == q.filter {
				p.request, p.abandoned = q, false
				s.spare--
				return p, nil, nil
			}
		}
	}
	s.lastID++
	q.head.ID = s.lastID
	if raw, err = json.Marshal(q.body); err == nil {
		p = &pending{request: q, id: s.lastID, reply: make(chan error, 1)}
		s.pending[p.id] = p
	}
	return p, raw, err
}

// take removes a request from pending. It returns nil if it is not there.
func (s *socket) take(id int64) *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending[id]
	delete(s.pending, id)
	if p != nil && p.abandoned && p.filter != "" {
		s.spare--
	}
	return p
}

// abandon is called when the caller no longer waits. It returns false if the reply has
// arrived.
func (s *socket) abandon(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending[id]
	switch {
	case p == nil:
		return false
	case !p.claims:
		delete(s.pending, id)
	case p.filter != "":
		s.spare++
	}
	p.abandoned = true
	return true
}

// answer passes a reply to the caller.
func (s *socket) answer(f frame) {
	p := s.take(f.ID)
	switch {
	case p == nil:
	case f.Error != nil:
		p.reply <- f.Error
	case f.OK == nil:
		p.reply <- errors.New("unexpected reply: neither ok nor error")
	case p.onReply != nil:
		p.reply <- p.onReply(s, f.OK, p.abandoned)
	default:
		p.reply <- nil
	}
}
