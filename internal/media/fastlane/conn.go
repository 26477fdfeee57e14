package fastlane

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The states of a connection tell who else may end it.
const (
	waiting int32 = iota // for a request: nothing is lost if it ends
	busy                 // the lane answers: it ends after that
	handed               // net/http has a request, and says when it is done
	closing              // it has ended, or does so after the answer under way
)

// conn is a connection of net/http with the lane in its Read. Its fields belong
// to the goroutine that net/http reads with, of which there is one at a time,
// but for state and what mu guards.
type conn struct {
	net.Conn // the socket, or TLS over it
	socket   net.Conn
	records  *records // between TLS and the socket; nil without TLS
	sender   *sender  // nil with TLS
	lane     *Lane
	state    atomic.Int32

	foreign  bool   // for good: only net/http knows where the next request begins
	owed     int64  // bytes of the body of the request that net/http has
	ahead    []byte // read already, but not part of that request
	one      [1]byte
	remote   string
	exchange *exchange // of uploads; nil before the first

	readBy, writeBy time.Time // deadlines that the lane has set
	head            []byte
	parts           [2][]byte
	pieces          net.Buffers

	mu      sync.Mutex
	waker   sync.Cond
	expired bool // the read deadline that net/http has set
}

func newConn(socket net.Conn, l *Lane) *conn {
	c := &conn{Conn: socket, socket: socket, lane: l}
	c.waker.L = &c.mu
	return c
}

// Read gives net/http the requests that the lane does not answer, and never
// more than one of them.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.foreign && len(c.ahead) > 0:
		return c.replay(p), nil
	case c.foreign:
		return c.Conn.Read(p)
	case c.owed > 0:
		n, err := c.Conn.Read(p[:min(int64(len(p)), c.owed)])
		c.owed -= int64(n)
		return n, err
	case c.state.Load() == handed:
		return c.watch()
	default:
		return c.serve(p)
	}
}

// serve answers requests until one comes that is not the lane's, and leaves
// that in p.
func (c *conn) serve(p []byte) (int, error) {
	begun, later := false, false // bytes of a request, and requests before it
	for n := c.replay(p); ; {
		r, v := parse(p[:n])
		switch v {
		case partial:
			if n == len(p) {
				return c.handOn(p, n, r, foreign)
			}
			if n == 0 {
				arm(&c.readBy, c.lane.idle, c.Conn.SetReadDeadline)
			} else if !begun {
				begun = true
				c.limitRead(c.lane.header)
			}
			m, err := c.Conn.Read(p[n:])
			switch n += m; {
			case err == nil:
			case n == 0 || errors.Is(err, os.ErrDeadlineExceeded):
				return 0, err
			case later && n < shortest:
				return 0, err
			default: // what is said to a request that breaks off is for net/http to know
				return c.handOn(p, n, r, foreign)
			}
		case plain:
			switch err := c.answer(c.lane.cache.get(r.path, c.sender == nil)); {
			case errors.Is(err, errGone):
				return c.handOn(p, n, r, framed)
			case err != nil: // nobody is there to be told
				return 0, io.EOF
			}
			n, begun, later = copy(p, p[r.head:n]), false, true
		case upload:
			if r.body > c.lane.maxUpload {
				return c.handOn(p, n, r, framed)
			}
			m, err := c.upload(p[:n], r)
			if err != nil {
				return 0, io.EOF
			}
			n, begun, later = copy(p, p[m:n]), false, true
		default:
			return c.handOn(p, n, r, v)
		}
	}
}

// errGone says that an object is not at hand any more.
var errGone = errors.New("object gone")

// answer sends an object. After an error but errGone the connection ends.
func (c *conn) answer(e *entry) error {
	if e == nil {
		return errGone
	}
	if !c.state.CompareAndSwap(waiting, busy) {
		return net.ErrClosed
	}
	arm(&c.writeBy, c.lane.write, c.Conn.SetWriteDeadline)
	err := c.send(e)
	if !c.state.CompareAndSwap(busy, waiting) || c.lane.draining.Load() {
		return net.ErrClosed
	}
	if err == nil {
		c.lane.served(e.path, int(e.length))
	}
	return err
}

// handOn returns to net/http what is in p, but for what follows its first
// request.
func (c *conn) handOn(p []byte, n int, r request, v verdict) (int, error) {
	if !c.state.CompareAndSwap(waiting, handed) {
		return 0, io.EOF
	}
	if !c.writeBy.IsZero() {
		_ = c.SetWriteDeadline(time.Time{})
	}
	if v == foreign {
		c.foreign = true
		c.limitRead(c.lane.header)
		return n, nil
	}
	c.limitRead(0)
	if size := int64(r.head) + r.body; size < int64(n) {
		c.ahead, n = slices.Clone(p[size:n]), int(size)
	} else {
		c.owed = size - int64(n)
	}
	return n, nil
}

// settle hears from net/http that a connection waits for its next request.
func (c *conn) settle(state http.ConnState) {
	switch {
	case state == http.StateHijacked || state == http.StateIdle && c.owed > 0:
		c.foreign = true
	case state == http.StateIdle && !c.foreign:
		c.state.CompareAndSwap(handed, waiting)
	}
}

// watch is what net/http does while a handler runs, to hear of a client that
// leaves. A byte that comes instead begins the next request: it is held back
// until net/http gives up, so that the lane may see that request too.
func (c *conn) watch() (int, error) {
	if len(c.ahead) == 0 {
		n, err := c.Conn.Read(c.one[:])
		if n == 0 {
			return 0, err
		}
		c.ahead = c.one[:]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.expired {
		c.waker.Wait()
	}
	return 0, os.ErrDeadlineExceeded
}

func (c *conn) replay(p []byte) int {
	n := copy(p, c.ahead)
	if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
		c.ahead = nil
	}
	return n
}

// arm moves a deadline on if the time left is not about what it should be. So a
// busy connection rarely sets one, and no limit is exceeded by more than a
// quarter.
func arm(by *time.Time, limit time.Duration, set func(time.Time) error) {
	now := time.Now()
	if left := by.Sub(now); limit > 0 && (left < limit || left > limit+limit/4) {
		*by = now.Add(limit + limit/4)
		_ = set(*by)
	}
}

// limitRead sets the read deadline, with 0 for none.
func (c *conn) limitRead(limit time.Duration) {
	c.readBy = time.Time{}
	if limit > 0 {
		c.readBy = time.Now().Add(limit)
	}
	_ = c.Conn.SetReadDeadline(c.readBy)
}

// SetReadDeadline is net/http's, which interrupts watch with one in the past.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy = time.Time{}
	c.wake(!t.IsZero() && t.Before(time.Now()))
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is net/http's.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeBy = time.Time{}
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) wake(expired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = expired
	c.waker.Broadcast()
}

// Close ends the connection, after the answer under way if there is one: then
// net/http calls it again.
func (c *conn) Close() error {
	if c.state.CompareAndSwap(busy, closing) {
		return nil
	}
	c.state.Store(closing)
	c.wake(true)
	c.lane.forget(c)
	return c.Conn.Close()
}

// CloseWrite lets net/http end a connection whose client still sends.
func (c *conn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

// remoteAddr is the client's, as text.
func (c *conn) remoteAddr() string {
	if addr := c.socket.RemoteAddr(); c.remote == "" && addr != nil {
		c.remote = addr.String()
	}
	return c.remote
}
