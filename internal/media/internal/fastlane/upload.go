package fastlane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxUploadBytes is the largest body of an upload that this package handles. Like
// net/http, it can skip an unread body up to this size and keep the connection.
// For larger bodies the overhead of net/http is negligible.
const maxUploadBytes = 256<<10 - 1

// exchange is an upload and the http.ResponseWriter for its response. The response
// is sent when the handler returns. The exchange is then reused for the next upload
// of the connection.
type exchange struct {
	*conn
	request http.Request
	url     url.URL

	buffered                       []byte    // unread part of the body that is already in memory
	unread                         int64     // bytes of the body that were not read yet
	readErr                        error     // error of an earlier read
	deadlineApplied                bool      // bodyDeadline is set on the connection
	bodyDeadline, responseDeadline time.Time // set by the handler

	header http.Header
	status int
	body   []byte
}

// upload runs the server's handler for the upload at the start of p, and returns
// how many bytes of p belong to it. After an error the connection must be closed.
func (c *conn) upload(p []byte, r request) (int, error) {
	if !c.state.CompareAndSwap(idle, busy) {
		return 0, net.ErrClosed
	}
	defer c.state.CompareAndSwap(busy, idle) // after a panic, so that net/http can close the connection
	if c.exchange == nil {
		c.exchange = &exchange{conn: c, header: http.Header{}}
		c.exchange.request.Header = http.Header{}
	}
	size := min(int64(len(p)), int64(r.head)+r.body)
	x := c.exchange
	x.begin(p[:r.head], r, p[r.head:size])
	c.fastPath.handler.ServeHTTP(x, &x.request)
	err := x.finish()
	if !c.state.CompareAndSwap(busy, idle) || c.fastPath.draining.Load() {
		return 0, net.ErrClosed
	}
	return int(size), err
}

// begin fills in the request that net/http would pass to the handler, without TLS
// state and context values.
func (x *exchange) begin(head []byte, r request, buffered []byte) {
	clear(x.header)
	clear(x.request.Header)
	path := string(r.path)
	*x = exchange{conn: x.conn, buffered: buffered, unread: r.body, url: url.URL{Path: path},
		header: x.header, body: x.body[:0], request: http.Request{
			Method: http.MethodPut, URL: &x.url, RequestURI: path,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: x.request.Header, Body: http.NoBody, ContentLength: r.body, RemoteAddr: x.remote(),
		}}
	if r.body > 0 {
		x.request.Body = uploadBody{x}
	}
	_, fields, _ := bytes.Cut(head, []byte("\r\n"))
	for len(fields) > len("\r\n") {
		var line []byte
		line, fields, _ = bytes.Cut(fields, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte{':'})
		x.request.Header.Add(string(name), string(bytes.Trim(value, " \t")))
	}
	x.request.Host = x.request.Header.Get("Host")
	x.request.Header.Del("Host")
}

type uploadBody struct{ x *exchange }

func (u uploadBody) Close() error { return nil }

func (u uploadBody) Read(p []byte) (int, error) {
	x := u.x
	switch {
	case x.readErr != nil:
		return 0, x.readErr
	case x.unread == 0:
		return 0, io.EOF
	case len(x.buffered) > 0:
		n := copy(p, x.buffered)
		x.buffered, x.unread = x.buffered[n:], x.unread-int64(n)
		return n, nil
	case !x.deadlineApplied:
		x.deadlineApplied = true
		x.readDeadline.Store(x.bodyDeadline.UnixNano())
		_ = x.Conn.SetReadDeadline(x.bodyDeadline)
	}
	n, err := x.Conn.Read(p[:min(int64(len(p)), x.unread)])
	if x.unread -= int64(n); x.unread == 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) { // finish has nothing to skip
		x.unread = 0
		return n, io.ErrUnexpectedEOF
	}
	x.readErr = err
	return n, err
}

// SetReadDeadline implements the method that http.ResponseController calls. It
// takes effect with the next read from the connection.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.bodyDeadline, x.deadlineApplied = t, false
	return nil
}

// SetWriteDeadline implements the method that http.ResponseController calls. It
// applies to the response.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.responseDeadline = t
	return nil
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= http.StatusOK {
		x.status = status
	}
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	x.body = append(x.body, p...)
	return len(p), nil
}

// finish skips the unread rest of the body and sends the response.
func (x *exchange) finish() error {
	_, err := io.Copy(io.Discard, uploadBody{x})
	closeConn := err != nil || x.fastPath.draining.Load() || x.header.Get("Connection") == "close"
	x.WriteHeader(http.StatusOK)
	now, timeout := time.Now(), x.fastPath.writeTimeout
	if !x.responseDeadline.IsZero() {
		timeout = max(x.responseDeadline.Sub(now), 1)
	}
	extendDeadline(&x.writeDeadline, now, timeout, x.Conn.SetWriteDeadline)
	x.head = x.fastPath.appendDate(x.appendHead(x.head[:0], closeConn), now)
	if x.status != http.StatusNoContent {
		x.head = append(x.head, x.body...)
	}
	if _, err := x.Conn.Write(x.head); err != nil {
		return err
	}
	if closeConn {
		return net.ErrClosed
	}
	return nil
}

// appendHead appends the status line and header that net/http would send, up to the
// value of Date.
func (x *exchange) appendHead(head []byte, closeConn bool) []byte {
	head = fmt.Appendf(head, "HTTP/1.1 %d %s\r\n", x.status, http.StatusText(x.status))
	if len(x.header) > 0 {
		fields := bytes.NewBuffer(head)
		_ = x.header.Write(fields)
		head = fields.Bytes()
	}
	if x.header["Content-Length"] == nil && x.status != http.StatusNoContent {
		head = fmt.Appendf(head, "Content-Length: %d\r\n", len(x.body))
	}
	if x.header["Content-Type"] == nil && len(x.body) > 0 && x.status != http.StatusNoContent {
		head = fmt.Appendf(head, "Content-Type: %s\r\n", http.DetectContentType(x.body))
	}
	if closeConn && x.header["Connection"] == nil {
		head = append(head, "Connection: close\r\n"...)
	}
	return append(head, "Date: "...)
}
