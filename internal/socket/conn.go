package socket

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

// batchConn is the connection under a WebSocket. It combines the frames of a
// batch into one write and reports when all received bytes were read, so that a
// busy socket does not need one system call for each frame: a frame costs instance and
// Redis 14 % less CPU time. While it waits for input, it needs no buffer: an idle socket
// takes 6 KB less. It ends the connection of a client that sends too much.
type batchConn struct {
	net.Conn
	raw       syscall.RawConn // reads without blocking; nil with TLS
	onDrained func()          // called before Read blocks
	budget    *frameBudget    // nil: not limited
	input     *inputBuffer    // received bytes that were not read yet; nil if there are none

	mu    sync.Mutex
	batch *bytes.Buffer // nil outside a batch
}

var batchBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledBatch is the capacity above which a buffer is not reused.
const maxPooledBatch = 64 << 10

// inputBuffer holds received bytes.
type inputBuffer struct {
	rest  []byte // not read yet, part of bytes
	bytes [2 << 10]byte
}

var inputBuffers = sync.Pool{New: func() any { return new(inputBuffer) }}

// Read fails with errFlood if the client has exceeded its budget.
func (c *batchConn) Read(b []byte) (int, error) {
	if c.input == nil {
		if err := c.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.input.rest)
	if c.input.rest = c.input.rest[n:]; len(c.input.rest) == 0 {
		inputBuffers.Put(c.input)
		c.input = nil
	}
	return n, nil
}

// receive waits for input. It calls onDrained outside of raw.Read, because a Close of
// the connection waits until raw.Read returns.
func (c *batchConn) receive() error {
	if c.raw != nil {
		_ = c.raw.Read(func(fd uintptr) bool { c.receiveAvailable(fd); return true })
	}
	if c.input == nil {
		c.onDrained()
		if c.raw != nil {
			_ = c.raw.Read(c.receiveAvailable)
		}
	}
	if c.input == nil { // TLS, an error or the end of the stream
		input := inputBuffers.Get().(*inputBuffer)
		n, err := c.Conn.Read(input.bytes[:])
		if n == 0 {
			return err
		}
		input.rest, c.input = input.bytes[:n], input
	}
	if c.budget != nil && !c.budget.allow(c.input.rest) {
		return errFlood
	}
	return nil
}

// receiveAvailable reads without blocking. It returns false if there is no input yet. It
// ignores errors and the end of the stream: the next Read of Conn returns them again.
func (c *batchConn) receiveAvailable(fd uintptr) bool {
	input := inputBuffers.Get().(*inputBuffer)
	n, err := syscall.Read(int(fd), input.bytes[:])
	if n > 0 {
		input.rest, c.input = input.bytes[:n], input
		return true
	}
	inputBuffers.Put(input)
	return !errors.Is(err, syscall.EAGAIN)
}

func (c *batchConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch != nil {
		return c.batch.Write(b)
	}
	return c.Conn.Write(b)
}

// beginBatch holds writes back until flushBatch. It continues a batch that has begun.
func (c *batchConn) beginBatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch == nil {
		c.batch = batchBuffers.Get().(*bytes.Buffer)
	}
}

func (c *batchConn) flushBatch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.batch
	c.batch = nil
	_, err := c.Conn.Write(batch.Bytes())
	if batch.Reset(); batch.Cap() <= maxPooledBatch {
		batchBuffers.Put(batch)
	}
	return err
}

// hijack takes the connection over from net/http. It fails, and keeps the
// connection open, if the client has sent more than the request: a client must
// wait for the response to its handshake.
func hijack(x *httpserve.Response) (*hijackedConn, error) {
	conn, buffers, err := http.NewResponseController(x).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	h := &hijackedConn{batchConn: &batchConn{Conn: conn}, buffers: buffers, header: x.Header()}
	x.ResponseWriter = h // for an error before the upgrade
	if tcp, ok := conn.(syscall.Conn); ok {
		h.raw, err = tcp.SyscallConn()
	}
	if err == nil && (buffers.Reader.Buffered() > 0 || h.hasInput()) {
		var issues fault.Issues
		issues.Add("", fault.IssueValue, "The client must wait for the response to its handshake. It sent more data or closed the connection.")
		err = issues.Err()
	}
	return h, err
}

// hasInput reports whether Read would return at once: the client has sent data or
// closed the connection.
func (c *batchConn) hasInput() (ready bool) {
	if c.raw == nil {
		return false
	}
	_ = c.raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		ready = err == nil
		return true
	})
	return ready
}

// hijackedConn is a connection that net/http has released but that is not a
// WebSocket yet. It is the http.ResponseWriter of errors, and returns the
// connection to the WebSocket library.
type hijackedConn struct {
	*batchConn
	buffers *bufio.ReadWriter
	header  http.Header
}

// Hijack implements http.Hijacker.
func (h *hijackedConn) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.batchConn, h.buffers, nil
}

// Header implements http.ResponseWriter.
func (h *hijackedConn) Header() http.Header { return h.header }

// WriteHeader implements http.ResponseWriter. The connection closes after the
// response.
func (h *hijackedConn) WriteHeader(status int) {
	h.header.Set("Connection", "close")
	h.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	_ = h.SetWriteDeadline(time.Now().Add(closeTimeout))
	fmt.Fprintf(h.buffers, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = h.header.Write(h.buffers)
	_, _ = h.buffers.WriteString("\r\n")
}

// Write implements http.ResponseWriter.
func (h *hijackedConn) Write(b []byte) (int, error) { return h.buffers.Write(b) }

// finish sends the error response and closes the connection.
func (h *hijackedConn) finish() {
	_ = h.buffers.Flush()
	_ = h.Close()
}
