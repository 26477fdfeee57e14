package fastlane

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// plainConn lets net/http send files without copying them.
type plainConn struct{ *conn }

func (c plainConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// secureConn is a connection over TLS.
type secureConn struct {
	*conn
	tls *tls.Conn
}

func newSecureConn(socket net.Conn, l *Lane, config *tls.Config) secureConn {
	c := newConn(socket, l)
	c.records = &records{Conn: socket, pool: &l.held}
	secured := tls.Server(c.records, config)
	c.Conn = secured
	return secureConn{c, secured}
}

// ConnectionState shakes hands first. It is what net/http calls before anything
// else, in the connection's own goroutine, with the Request.TLS of all requests
// in mind; an error comes up again at the first Read.
func (c secureConn) ConnectionState() tls.ConnectionState {
	if c.lane.header > 0 {
		_ = c.Conn.SetDeadline(time.Now().Add(c.lane.header))
	}
	err := c.tls.HandshakeContext(context.Background())
	_ = c.Conn.SetDeadline(time.Time{})
	if mistake := (tls.RecordHeaderError{}); errors.As(err, &mistake) && mistake.Conn != nil && mistake.RecordHeader[0] >= 'A' {
		_, _ = io.WriteString(mistake.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
	}
	return c.tls.ConnectionState()
}

// records gathers what TLS writes, one record at a time, so that an answer does
// not take a system call for each.
type records struct {
	net.Conn
	pool *sync.Pool // of *[]byte
	held *[]byte    // nil: what is written goes out at once
}

// heldBytes is how much is gathered at most.
const heldBytes = 64 << 10

func (r *records) hold() {
	var ok bool
	if r.held, ok = r.pool.Get().(*[]byte); !ok {
		b := make([]byte, 0, heldBytes)
		r.held = &b
	}
}

func (r *records) Write(b []byte) (int, error) {
	if r.held == nil {
		return r.Conn.Write(b)
	}
	if len(*r.held)+len(b) > heldBytes {
		if _, err := r.Conn.Write(*r.held); err != nil {
			return 0, err
		}
		*r.held = (*r.held)[:0]
	}
	*r.held = append(*r.held, b...)
	return len(b), nil
}

func (r *records) flush() error {
	_, err := r.Conn.Write(*r.held)
	*r.held = (*r.held)[:0]
	r.pool.Put(r.held)
	r.held = nil
	return err
}
