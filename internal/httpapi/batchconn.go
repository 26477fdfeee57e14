package httpapi

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// batchConn is the connection under a WebSocket. It combines the frames of a
// batch into one write and reports when all received bytes were read, so that a
// busy socket does not need one system call for each frame.
type batchConn struct {
	net.Conn
	raw       syscall.RawConn // nil if Conn cannot be read without blocking, as with TLS
	onDrained func()          // called before Read blocks

	mu    sync.Mutex
	batch *bytes.Buffer // nil outside a batch
}

var batchBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxPooledBatch is the capacity above which a buffer is not reused.
const maxPooledBatch = 64 << 10

func (c *batchConn) Read(b []byte) (int, error) {
	if n := c.readAvailable(b); n > 0 {
		return n, nil
	}
	c.onDrained()
	return c.Conn.Read(b)
}

// readAvailable reads without blocking. It ignores errors and the end of the
// stream: the next Read of Conn returns them again.
func (c *batchConn) readAvailable(b []byte) (n int) {
	if c.raw == nil {
		return 0
	}
	_ = c.raw.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), b)
		return true
	})
	return n
}

func (c *batchConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch != nil {
		return c.batch.Write(b)
	}
	return c.Conn.Write(b)
}

// beginBatch buffers all writes until flushBatch.
func (c *batchConn) beginBatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = batchBuffers.Get().(*bytes.Buffer)
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

// batchHijacker gives the upgrader conn in place of the hijacked connection.
type batchHijacker struct {
	http.ResponseWriter
	conn *batchConn
}

func (h batchHijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffers, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn.Conn = conn
	if direct, ok := conn.(syscall.Conn); ok && err == nil {
		h.conn.raw, err = direct.SyscallConn()
	}
	return h.conn, buffers, err
}
