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

// The states of a connection decide whether another goroutine may close it.
const (
	idle    int32 = iota // waits for a request: can be closed
	busy                 // the fast path is responding: close afterwards
	handed               // net/http has a request
	closing              // closed, or will be after the active response
)

// conn is a connection of net/http with the fast path in its Read method. Its
// fields belong to the goroutine in which net/http reads, of which there is one
// at a time, except for state and the fields guarded by mu.
type conn struct {
	net.Conn // the socket, or TLS over it
	socket   net.Conn
	records  *recordWriter // between TLS and the socket; nil without TLS
	sender   *sender       // nil with TLS
	fastPath *FastPath
	state    atomic.Int32

	unframed   bool    // only net/http knows where the next request begins; never reset
	bodyLeft   int64   // unread bytes of the body of the request that net/http has
	ahead      []byte  // bytes after that request that were read already
	oneByte    [1]byte // buffer of detectClose
	remoteAddr string
	host       string    // that acceptsHost accepted last
	exchange   *exchange // of uploads; nil before the first

	readDeadline, writeDeadline deadline  // set by the fast path
	head                        []byte    // of the response; reused
	parts                       [2][]byte // storage of buffers
	buffers                     net.Buffers

	mu      sync.Mutex
	waker   sync.Cond
	expired bool // net/http has set a read deadline in the past, or the connection is closed
}

// deadline is a time in Unix ns; 0 if unknown. net/http sets deadlines while another
// goroutine reads.
type deadline struct{ atomic.Int64 }

func newConn(socket net.Conn, f *FastPath) *conn {
	c := &conn{Conn: socket, socket: socket, fastPath: f}
	c.waker.L = &c.mu
	return c
}

// Read returns requests that the fast path does not serve, at most one at a time.
func (c *conn) Read(p []byte) (int, error) {
	switch {
	case c.unframed && len(c.ahead) > 0:
		return c.replay(p), nil
	case c.unframed:
		return c.Conn.Read(p)
	case c.bodyLeft > 0:
		n, err := c.Conn.Read(p[:min(int64(len(p)), c.bodyLeft)])
		c.bodyLeft -= int64(n)
		return n, err
	case c.state.Load() == handed:
		return c.detectClose()
	default:
		return c.serve(p)
	}
}

// serve serves requests until it reads one for net/http, which it leaves in p.
func (c *conn) serve(p []byte) (int, error) {
	n := c.replay(p)
	begun := false // a part of the request was read
	later := false // the request is not the first of the connection
	for {
		var size int // of the request
		r, verdict := parse(p[:n])
		if (verdict == plain || verdict == upload) && !c.acceptsHost(r.host) {
			verdict = framed
		}
		switch verdict {
		case partial:
			if n == len(p) {
				return c.passToServer(p, n, r, unframed)
			}
			if n == 0 {
				extendDeadline(&c.readDeadline, time.Now(), c.fastPath.idleTimeout, c.Conn.SetReadDeadline)
			} else if !begun {
				begun = true
				c.limitRead(c.fastPath.headerTimeout)
			}
			m, err := c.Conn.Read(p[n:])
			switch n += m; {
			case err == nil:
				continue
			case n == 0 || errors.Is(err, os.ErrDeadlineExceeded):
				return 0, err
			case later && n < minRequest:
				return 0, err
			default: // net/http responds to truncated requests
				return c.passToServer(p, n, r, unframed)
			}
		case plain:
			switch err := c.respond(c.fastPath.cache.get(r.path, c.sender == nil)); {
			case errors.Is(err, errNotCached):
				return c.passToServer(p, n, r, framed)
			case err != nil: // the client has disconnected
				return 0, io.EOF
			}
			size = r.head
		case upload:
			if r.body > c.fastPath.options.MaxUpload {
				return c.passToServer(p, n, r, framed)
			}
			var err error
			if size, err = c.upload(p[:n], r); err != nil {
				return 0, io.EOF
			}
		default:
			return c.passToServer(p, n, r, verdict)
		}
		n = copy(p, p[size:n])
		begun, later = false, true
	}
}

// acceptsHost reports whether the fast path may serve a request with this Host.
func (c *conn) acceptsHost(host []byte) bool {
	accept := c.fastPath.options.AcceptHost
	if accept == nil || c.host == string(host) {
		return true
	}
	if !accept(string(host)) {
		return false
	}
	c.host = string(host)
	return true
}

// errNotCached is returned when the cache has no blob, or has removed it meanwhile. Nothing
// was sent.
var errNotCached = errors.New("blob not cached")

// respond sends a blob. After an error other than errNotCached the connection must
// be closed.
func (c *conn) respond(e *entry) error {
	if e == nil {
		return errNotCached
	}
	if !c.state.CompareAndSwap(idle, busy) {
		return net.ErrClosed
	}
	now := time.Now()
	extendDeadline(&c.writeDeadline, now, c.fastPath.writeTimeout, c.Conn.SetWriteDeadline)
	err := c.send(e, now)
	if !c.state.CompareAndSwap(busy, idle) || c.fastPath.draining.Load() {
		return net.ErrClosed
	}
	if served := c.fastPath.options.Served; err == nil && served != nil {
		served(e.path, int(e.length))
	}
	return err
}

// passToServer returns the first request in p to net/http and keeps the bytes after
// it.
func (c *conn) passToServer(p []byte, n int, r request, v verdict) (int, error) {
	if !c.state.CompareAndSwap(idle, handed) {
		return 0, io.EOF
	}
	if c.writeDeadline.Load() != 0 {
		_ = c.SetWriteDeadline(time.Time{})
	}
	if v == unframed {
		c.unframed = true
		c.limitRead(c.fastPath.headerTimeout)
		return n, nil
	}
	c.limitRead(0)
	if size := int64(r.head) + r.body; size < int64(n) {
		c.ahead, n = slices.Clone(p[size:n]), int(size)
	} else {
		c.bodyLeft = size - int64(n)
	}
	return n, nil
}

// stateChanged is called when net/http has finished with a request.
func (c *conn) stateChanged(state http.ConnState) {
	switch {
	case state == http.StateHijacked || state == http.StateIdle && c.bodyLeft > 0:
		c.unframed = true
	case state == http.StateIdle && !c.unframed:
		c.state.CompareAndSwap(handed, idle)
	}
}

// detectClose implements the read that net/http does while a handler runs, to
// detect a closed connection. A byte that it reads instead belongs to the next
// request. It is held back until net/http interrupts the read, so that the fast
// path can serve that request too.
func (c *conn) detectClose() (int, error) {
	if len(c.ahead) == 0 {
		n, err := c.Conn.Read(c.oneByte[:])
		if n == 0 {
			return 0, err
		}
		c.ahead = c.oneByte[:]
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

// extendDeadline makes sure that the deadline is 1 to 1.25 times the limit from now.
// The range avoids a system call for each request of a busy connection.
func extendDeadline(current *deadline, now time.Time, limit time.Duration, set func(time.Time) error) {
	if left := time.Duration(current.Load() - now.UnixNano()); limit > 0 && (left < limit || left > limit+limit/4) {
		next := now.Add(limit + limit/4)
		current.Store(next.UnixNano())
		_ = set(next)
	}
}

// limitRead sets the read deadline, with 0 for none.
func (c *conn) limitRead(limit time.Duration) {
	var at time.Time
	c.readDeadline.Store(0)
	if limit > 0 {
		at = time.Now().Add(limit)
		c.readDeadline.Store(at.UnixNano())
	}
	_ = c.Conn.SetReadDeadline(at)
}

// SetReadDeadline is called by net/http, which interrupts detectClose with a
// deadline in the past.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readDeadline.Store(0)
	c.wake(!t.IsZero() && t.Before(time.Now()))
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is called by net/http.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeDeadline.Store(0)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) wake(expired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = expired
	c.waker.Broadcast()
}

// Close closes the connection. If the fast path is sending a response, the
// connection is closed after it: net/http then calls Close again.
func (c *conn) Close() error {
	if c.state.CompareAndSwap(busy, closing) {
		return nil
	}
	c.state.Store(closing)
	c.wake(true)
	c.fastPath.remove(c)
	return c.Conn.Close()
}

// CloseWrite lets net/http close a connection while the client is still sending.
func (c *conn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}

func (c *conn) remote() string {
	if addr := c.socket.RemoteAddr(); c.remoteAddr == "" && addr != nil {
		c.remoteAddr = addr.String()
	}
	return c.remoteAddr
}

// dateField is the value of the Date field for one second.
type dateField struct {
	second int64
	text   []byte // with the empty line at the end of the header
}

// appendDate appends the value of Date and the end of the header.
func (f *FastPath) appendDate(head []byte, now time.Time) []byte {
	date := f.date.Load()
	if date == nil || date.second != now.Unix() {
		date = &dateField{now.Unix(), append(now.UTC().AppendFormat(nil, http.TimeFormat), "\r\n\r\n"...)}
		f.date.Store(date)
	}
	return append(head, date.text...)
}

// send writes header and body with one system call, also with TLS.
func (c *conn) send(e *entry, now time.Time) error {
	c.head = c.fastPath.appendDate(append(c.head[:0], e.head...), now)
	if e.file != nil {
		return c.sender.send(c.head, e.file, e.length)
	}
	if c.records == nil {
		c.buffers = append(c.parts[:0], c.head, e.body)
		_, err := c.buffers.WriteTo(c.Conn)
		return err
	}
	c.records.buffer()
	_, err := c.Conn.Write(c.head)
	if err == nil {
		_, err = c.Conn.Write(e.body)
	}
	return errors.Join(err, c.records.flush())
}
