package fastlane

import (
	"crypto/tls"
	"io"
	"net"
	"sync"

	"telapi/internal/httpserve"
)

// plainConn is a connection without TLS. net/http sends files to it with sendfile.
type plainConn struct{ *conn }

func (c plainConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

type tlsConn struct {
	*conn
	tls *tls.Conn
}

func newTLSConn(socket net.Conn, f *FastPath, config *tls.Config) tlsConn {
	c := newConn(socket, f)
	c.records = &recordWriter{Conn: socket, pool: &f.tlsBuffers}
	server := tls.Server(c.records, config)
	c.Conn = server
	return tlsConn{c, server}
}

// ConnectionState performs the handshake. net/http calls it first, in the
// connection's goroutine, for the TLS field of requests.
func (c tlsConn) ConnectionState() tls.ConnectionState {
	httpserve.Handshake(c.tls, c.fastPath.headerTimeout)
	return c.tls.ConnectionState()
}

// recordWriter buffers TLS records, so that a response does not need a system
// call for each of them.
type recordWriter struct {
	net.Conn
	pool *sync.Pool // of *[]byte
	held *[]byte    // nil: unbuffered
}

const recordBuffer = 64 << 10

// buffer starts buffering until flush.
func (r *recordWriter) buffer() {
	var ok bool
	if r.held, ok = r.pool.Get().(*[]byte); !ok {
		b := make([]byte, 0, recordBuffer)
		r.held = &b
	}
}

func (r *recordWriter) Write(b []byte) (int, error) {
	if r.held == nil {
		return r.Conn.Write(b)
	}
	if len(*r.held)+len(b) > recordBuffer {
		if _, err := r.Conn.Write(*r.held); err != nil {
			return 0, err
		}
		*r.held = (*r.held)[:0]
	}
	*r.held = append(*r.held, b...)
	return len(b), nil
}

func (r *recordWriter) flush() error {
	_, err := r.Conn.Write(*r.held)
	*r.held = (*r.held)[:0]
	r.pool.Put(r.held)
	r.held = nil
	return err
}
