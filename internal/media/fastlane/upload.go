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

// maxUploadBytes is the longest body that net/http skips if a handler does not
// read it. With longer bodies the overhead of net/http is negligible.
const maxUploadBytes = 256<<10 - 1

// exchange is an upload and its response. The response is sent when the handler
// returns. The exchange is then reused for the next upload of the connection.
type exchange struct {
	*conn
	request http.Request
	url     url.URL
	values  []string // storage for the request's header

	ahead                       []byte    // part of the body that is already in memory
	left                        int64     // bytes of the body that the handler has not read
	failure                     error     // of a read
	deadlineSet                 bool      // the read deadline is set on the connection
	readDeadline, writeDeadline time.Time // set by the handler

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
	defer c.state.CompareAndSwap(busy, idle) // lets net/http close it after a panic
	if c.exchange == nil {
		c.exchange = &exchange{conn: c, header: http.Header{}}
		c.exchange.request.Header = http.Header{}
	}
	size := min(int64(len(p)), int64(r.head)+r.body)
	x := c.exchange
	x.begin(p[:r.head], r, p[r.head:size])
	c.lane.handler.ServeHTTP(x, &x.request)
	err := x.finish()
	if !c.state.CompareAndSwap(busy, idle) || c.lane.draining.Load() {
		return 0, net.ErrClosed
	}
	return int(size), err
}

// begin creates the same request as net/http, without TLS state and context
// values.
func (x *exchange) begin(head []byte, r request, ahead []byte) {
	clear(x.header)
	clear(x.request.Header)
	path := string(r.path)
	*x = exchange{conn: x.conn, ahead: ahead, left: r.body, url: url.URL{Path: path}, values: x.values[:0],
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
		x.addField(textproto.CanonicalMIMEHeaderKey(string(name)), string(bytes.Trim(value, " \t")))
	}
}

// addField adds a header field to the request.
func (x *exchange) addField(key, value string) {
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

// uploadBody is the body of an upload.
type uploadBody struct{ x *exchange }

func (u uploadBody) Close() error { return nil }

func (u uploadBody) Read(p []byte) (int, error) {
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
	case !x.deadlineSet:
		x.deadlineSet = true
		x.conn.readDeadline = x.readDeadline
		_ = x.Conn.SetReadDeadline(x.readDeadline)
	}
	n, err := x.Conn.Read(p[:min(int64(len(p)), x.left)])
	if x.left -= int64(n); x.left == 0 {
		return n, nil
	}
	if errors.Is(err, io.EOF) { // nothing is left to skip
		x.left = 0
		return n, io.ErrUnexpectedEOF
	}
	x.failure = err
	return n, err
}

// SetReadDeadline is called by the handler. It takes effect with the next read
// from the connection.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.readDeadline, x.deadlineSet = t, false
	return nil
}

// SetWriteDeadline is called by the handler.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.writeDeadline = t
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
	_, broken := io.Copy(io.Discard, uploadBody{x})
	closes := broken != nil || x.lane.draining.Load() || x.header.Get("Connection") == "close"
	x.WriteHeader(http.StatusOK)
	limit := x.lane.writeTimeout
	if !x.writeDeadline.IsZero() {
		limit = max(time.Until(x.writeDeadline), 1)
	}
	extendDeadline(&x.conn.writeDeadline, limit, x.Conn.SetWriteDeadline)
	x.conn.head = x.lane.appendDate(x.appendHead(x.conn.head[:0], closes))
	if x.status != http.StatusNoContent {
		x.conn.head = append(x.conn.head, x.body...)
	}
	if _, err := x.Conn.Write(x.conn.head); err != nil {
		return err
	}
	if closes {
		return net.ErrClosed
	}
	return nil
}

// appendHead appends the same status line and header as net/http, up to the Date.
func (x *exchange) appendHead(head []byte, closes bool) []byte {
	head = append(head, "HTTP/1.1 "...)
	head = strconv.AppendInt(head, int64(x.status), 10)
	head = append(append(append(head, ' '), http.StatusText(x.status)...), "\r\n"...)
	if len(x.header) > 0 {
		fields := bytes.NewBuffer(head)
		_ = x.header.Write(fields)
		head = fields.Bytes()
	}
	if x.header["Content-Length"] == nil && x.status != http.StatusNoContent {
		head = append(strconv.AppendInt(append(head, "Content-Length: "...), int64(len(x.body)), 10), "\r\n"...)
	}
	if x.header["Content-Type"] == nil && len(x.body) > 0 && x.status != http.StatusNoContent {
		head = append(append(append(head, "Content-Type: "...), http.DetectContentType(x.body)...), "\r\n"...)
	}
	if closes && x.header["Connection"] == nil {
		head = append(head, "Connection: close\r\n"...)
	}
	return append(head, "Date: "...)
}
