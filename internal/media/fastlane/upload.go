package fastlane

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"time"
)

// longestUpload is the longest body that net/http skips if a handler does not
// want it. With longer ones what it does around a handler hardly counts.
const longestUpload = 256<<10 - 1

// exchange is an upload and its answer, between the lane and the server's
// handler. The answer goes out when the handler has returned, and all of it then
// serves the connection's next upload.
type exchange struct {
	*conn
	request http.Request
	url     url.URL
	values  []string // of the request's header

	ahead           []byte // of the body, read already
	left            int64  // of it, unread by the handler
	failure         error  // in reading it
	begun           bool   // to read it from the connection
	readBy, writeBy time.Time

	header http.Header
	status int
	body   []byte
}

// upload has the server's handler answer the upload that p begins with, and
// returns how many bytes of p belong to it. After an error the connection ends.
func (c *conn) upload(p []byte, r request) (int, error) {
	if !c.state.CompareAndSwap(waiting, busy) {
		return 0, net.ErrClosed
	}
	defer c.state.CompareAndSwap(busy, waiting) // for net/http to close after a panic
	if c.exchange == nil {
		c.exchange = &exchange{conn: c, header: http.Header{}}
		c.exchange.request.Header = http.Header{}
	}
	size := min(int64(len(p)), int64(r.head)+r.body)
	x := c.exchange
	x.begin(p[:r.head], r, p[r.head:size])
	c.lane.handler.ServeHTTP(x, &x.request)
	err := x.finish()
	if !c.state.CompareAndSwap(busy, waiting) || c.lane.draining.Load() {
		return 0, net.ErrClosed
	}
	return int(size), err
}

// begin makes the request that net/http would have made of the head, but for TLS
// and the values of its context.
func (x *exchange) begin(head []byte, r request, ahead []byte) {
	clear(x.header)
	clear(x.request.Header)
	path := string(r.path)
	*x = exchange{conn: x.conn, ahead: ahead, left: r.body, url: url.URL{Path: path}, values: x.values[:0],
		header: x.header, body: x.body[:0], request: http.Request{
			Method: http.MethodPut, URL: &x.url, RequestURI: path,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: x.request.Header, Body: http.NoBody, ContentLength: r.body, RemoteAddr: x.remoteAddr(),
		}}
	if r.body > 0 {
		x.request.Body = unread{x}
	}
	_, fields, _ := bytes.Cut(head, []byte("\r\n"))
	for len(fields) > len("\r\n") {
		var line []byte
		line, fields, _ = bytes.Cut(fields, []byte("\r\n"))
		name, value, _ := bytes.Cut(line, []byte{':'})
		x.take(textproto.CanonicalMIMEHeaderKey(string(name)), string(bytes.Trim(value, " \t")))
	}
}

// take adds a field to the request.
func (x *exchange) take(key, value string) {
	header := x.request.Header
	switch before := header[key]; {
	case key == "Host":
		x.request.Host = value
	case before != nil:
		header[key] = append(before, value)
	default:
		x.values = append(x.values, value)
		header[key] = x.values[len(x.values)-1 : len(x.values) : len(x.values)]
	}
}

// unread is the body of an upload.
type unread struct{ x *exchange }

func (u unread) Close() error { return nil }

func (u unread) Read(p []byte) (int, error) {
	x := u.x
	switch {
	case x.failure != nil:
		return 0, x.failure
	case x.left == 0:
		return 0, io.EOF
	case len(x.ahead) > 0:
		n := copy(p, x.ahead)
		x.ahead, x.left = x.ahead[n:], x.left-int64(n)
		return n, nil
	case !x.begun:
		x.begun = true
		x.conn.readBy = x.readBy
		_ = x.Conn.SetReadDeadline(x.readBy)
	}
	n, err := x.Conn.Read(p[:min(int64(len(p)), x.left)])
	if x.left -= int64(n); x.left == 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) { // there is no more of it, and none to skip
		x.left = 0
		return n, io.ErrUnexpectedEOF
	}
	x.failure = err
	return n, err
}

// SetReadDeadline is the handler's, and takes effect when a body has not come
// yet.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.readBy, x.begun = t, false
	return nil
}

// SetWriteDeadline is the handler's.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.writeBy = t
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

// finish skips what the handler did not read, and sends the answer.
func (x *exchange) finish() error {
	_, broken := io.Copy(io.Discard, unread{x})
	ends := broken != nil || x.lane.draining.Load() || x.header.Get("Connection") == "close"
	x.WriteHeader(http.StatusOK)
	limit := x.lane.write
	if !x.writeBy.IsZero() {
		limit = max(time.Until(x.writeBy), 1)
	}
	arm(&x.conn.writeBy, limit, x.Conn.SetWriteDeadline)
	x.conn.head = x.lane.dated(x.appendHead(x.conn.head[:0], ends))
	if x.status != http.StatusNoContent {
		x.conn.head = append(x.conn.head, x.body...)
	}
	if _, err := x.Conn.Write(x.conn.head); err != nil {
		return err
	}
	if ends {
		return net.ErrClosed
	}
	return nil
}

// appendHead adds what net/http would have sent, up to the Date.
func (x *exchange) appendHead(head []byte, ends bool) []byte {
	head = append(head, "HTTP/1.1 "...)
	head = strconv.AppendInt(head, int64(x.status), 10)
	head = append(append(append(head, ' '), http.StatusText(x.status)...), "\r\n"...)
	if len(x.header) > 0 {
		fields := bytes.NewBuffer(head)
		_ = x.header.Write(fields) // a buffer takes everything
		head = fields.Bytes()
	}
	if x.header["Content-Length"] == nil && x.status != http.StatusNoContent {
		head = append(strconv.AppendInt(append(head, "Content-Length: "...), int64(len(x.body)), 10), "\r\n"...)
	}
	if x.header["Content-Type"] == nil && len(x.body) > 0 && x.status != http.StatusNoContent {
		head = append(append(append(head, "Content-Type: "...), http.DetectContentType(x.body)...), "\r\n"...)
	}
	if ends && x.header["Connection"] == nil {
		head = append(head, "Connection: close\r\n"...)
	}
	return append(head, "Date: "...)
}
