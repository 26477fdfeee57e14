package httpserve

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
)

// Listen returns a listener for srv.Serve that replaces the plain text with which
// net/http rejects malformed requests by the error envelope. Connections of l with TLS
// use HTTP/1.1. Call it before srv serves. srv.ConnState receives the connections of l.
func Listen(srv *http.Server, l net.Listener, log *slog.Logger) net.Listener {
	next := srv.ConnState
	srv.ConnState = func(nc net.Conn, state http.ConnState) {
		c := nc.(wrapped).base()
		if state == http.StateNew || state == http.StateIdle {
			c.begins = true
		}
		if next != nil {
			next(c.Conn, state)
		}
	}
	connContext := srv.ConnContext
	srv.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if connContext != nil {
			ctx = connContext(ctx, nc)
		}
		return context.WithValue(ctx, connKey{}, nc.(wrapped).base())
	}
	return listener{l, srv.ReadHeaderTimeout, log}
}

// connKey is the key of the connection in the contexts of its requests.
type connKey struct{}

// Linger waits until a client has closed its connection, at most for the given time, and
// drops what it still sends. If a connection is closed with unread input, the client may not
// receive the response. Call it at the end of a handler, after a response with Content-Length and
// Connection: close. It does not need the body, whose reads may have failed. ctx is that of the
// request.
func Linger(ctx context.Context, timeout time.Duration) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok && c.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(timeout))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
}

type listener struct {
	net.Listener
	handshakeTimeout time.Duration
	log              *slog.Logger
}

func (l listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, log: l.log}
	if _, ok := nc.(stater); ok {
		return tlsConn{c, l.handshakeTimeout}, nil
	}
	return plainConn{c}, nil
}

// conn is a connection of net/http. A response that net/http sends by itself is the first
// Write of a response, and the only one. Nothing that a handler writes is changed: its
// header has a date, and its body is not the first Write.
type conn struct {
	net.Conn
	log    *slog.Logger
	begins bool // the next Write is the first of a response; belongs to the goroutine of the request
}

// wrapped is a connection of Listen: a plainConn or a tlsConn.
type wrapped interface{ base() *conn }

func (c *conn) base() *conn { return c }

func (c *conn) Write(b []byte) (int, error) {
	if !c.begins {
		return c.Conn.Write(b)
	}
	c.begins = false
	err := rejection(b)
	if err == nil {
		return c.Conn.Write(b)
	}
	id := rand.Text()
	c.log.Debug("malformed request", "status", err.Code.Status(), "code", err.Code, "client", c.RemoteAddr(), "request_id", id)
	if _, err := c.Conn.Write(response(err, id)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite lets net/http close a connection while the client is still sending.
func (c *conn) CloseWrite() error {
	if closer, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return closer.CloseWrite()
	}
	return nil
}

// plainConn is a connection without TLS. net/http sends files to it with sendfile.
type plainConn struct{ *conn }

func (c plainConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// stater is a connection with TLS: a *tls.Conn, or one that wraps it.
type stater interface{ ConnectionState() tls.ConnectionState }

// tlsConn wraps a stater.
type tlsConn struct {
	*conn
	timeout time.Duration
}

// ConnectionState performs the handshake. net/http calls it first, in the connection's
// goroutine, for the TLS field of requests.
func (c tlsConn) ConnectionState() tls.ConnectionState {
	if secure, ok := c.Conn.(*tls.Conn); ok {
		Handshake(secure, c.timeout)
	}
	return c.Conn.(stater).ConnectionState()
}

// Handshake performs the handshake of a connection. If it fails, the first Read returns the
// error. A client that does not use TLS gets a readable answer.
func Handshake(c *tls.Conn, timeout time.Duration) {
	if timeout > 0 {
		_ = c.SetDeadline(time.Now().Add(timeout))
	}
	err := c.HandshakeContext(context.Background())
	_ = c.SetDeadline(time.Time{})
	if mistake := (tls.RecordHeaderError{}); errors.As(err, &mistake) && mistake.Conn != nil && mistake.RecordHeader[0] >= 'A' {
		_, _ = mistake.Conn.Write(response(malformed("This port uses TLS. Use https or wss."), rand.Text()))
	}
}

// errorHeader follows the status line of every error that net/http sends by itself,
// except 417. A handler's response has at least a date.
const errorHeader = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// rejection returns the error that net/http is sending by itself, or nil if b is the
// response of a handler.
func rejection(b []byte) *fault.Error {
	const version = "HTTP/1.x "
	if len(b) < len(version+"400") || !bytes.HasPrefix(b, []byte("HTTP/1.")) {
		return nil
	}
	line, rest, _ := bytes.Cut(b[len(version):], []byte("\r\n"))
	status, text, _ := bytes.Cut(line, []byte(" "))
	if string(status) == "417" { // no handler sends it
		return fault.New(fault.ExpectationFailed, "Unknown expectation: use Expect: 100-continue, or no Expect header.")
	}
	if !bytes.HasPrefix(rest, []byte(errorHeader)) {
		return nil
	}
	switch string(status) {
	case "400":
		_, reason, found := bytes.Cut(text, []byte(": "))
		if !found {
			return malformed("The request is not valid HTTP/1.1.")
		}
		return malformed("The request is not valid HTTP/1.1: " + string(reason) + ".")
	case "431":
		return fault.New(fault.HeaderTooLarge, "The header of the request is too large.")
	case "501":
		return fault.New(fault.NotImplemented, "Unknown Transfer-Encoding: use chunked, or Content-Length.")
	case "505":
		return fault.New(fault.HTTPVersion, "Use HTTP/1.1.")
	}
	return nil
}

func malformed(message string) *fault.Error {
	var issues fault.Issues
	issues.Add("", fault.IssueValue, "%s", message)
	return fault.From(issues.Err())
}

// response returns a complete response, after which the connection closes.
func response(err *fault.Error, id string) []byte {
	body, _ := json.Marshal(err.Envelope(id), json.Deterministic(true)) // cannot fail: details are issues
	status := err.Code.Status()
	b := bytes.NewBufferString("HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\r\n")
	_ = http.Header{
		"Cache-Control":          {"no-store"},
		"Connection":             {"close"},
		"Content-Length":         {strconv.Itoa(len(body))},
		"Content-Type":           {"application/json"},
		"Date":                   {time.Now().UTC().Format(http.TimeFormat)},
		"X-Content-Type-Options": {"nosniff"},
		RequestIDHeader:          {id},
	}.Write(b)
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}
