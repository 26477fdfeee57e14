// Package httpserve is shared by the API server and the media service. It records
// responses, sends the error envelope, writes the access log, assigns request IDs,
// and checks methods and bearer tokens.
package httpserve

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
)

// Response is an http.ResponseWriter that records what it sends. It sends
// errors as the error envelope.
type Response struct {
	http.ResponseWriter
	Request   *http.Request
	RequestID string // if empty, Fail takes it from the request
	Realm     string // of WWW-Authenticate

	// ErrorsByStatus has the errors that replace the plain text that a handler such as
	// http.ServeContent sends with a status.
	ErrorsByStatus map[int]*fault.Error

	Status int          // 0 until the header is sent
	Bytes  int64        // length of the body so far
	Err    *fault.Error // the error that ended the request

	discard bool // the envelope was sent in place of the handler's body
}

// WriteHeader sends the header and records the status. Informational statuses
// are not recorded.
func (w *Response) WriteHeader(status int) {
	if err := w.ErrorsByStatus[status]; err != nil && w.Status == 0 && w.Err == nil {
		w.Fail(err)
		w.discard = true
		return
	}
	if status >= http.StatusOK {
		w.start(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *Response) Write(b []byte) (int, error) {
	if w.discard {
		return len(b), nil
	}
	w.start(http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.Bytes += int64(n)
	return n, err
}

// ReadFrom lets the kernel copy a file to the connection.
func (w *Response) ReadFrom(r io.Reader) (int64, error) {
	w.start(http.StatusOK)
	n, err := io.Copy(w.ResponseWriter, r)
	w.Bytes += n
	return n, err
}

// Hijack hands the connection over to a WebSocket.
func (w *Response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.Status = http.StatusSwitchingProtocols
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *Response) start(status int) {
	if w.Status == 0 {
		w.Status = status
	}
}

// Fail sends err as the error envelope and records it. The cause of the error is
// only logged. If the response has already started, Fail cuts the connection
// instead, so that the client cannot take a partial response for a complete one.
func (w *Response) Fail(err error) {
	w.Err = fault.From(err)
	if w.Status != 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
		return
	}
	if w.RequestID == "" {
		w.RequestID = NewRequestID(w.Request.Header)
	}
	body, err := json.Marshal(w.Err.Envelope(w.RequestID), json.Deterministic(true))
	if err != nil { // the details cannot be encoded; an internal error has none
		w.Err = fault.From(fmt.Errorf("encode error details: %w", err))
		body, _ = json.Marshal(w.Err.Envelope(w.RequestID))
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store") // replaces the handler's value for its content
	switch w.Err.Code {
	case fault.Unauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="`+w.Realm+`"`)
	case fault.PayloadTooLarge:
		h.Set("Connection", "close") // do not read the rest of the body
	}
	if w.Err.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(w.Err.RetryAfter.Seconds())), 10))
	}
	w.WriteBytes(w.Err.Code.Status(), "application/json", body)
}

// RecoverAndFinish must be deferred. It turns a panic of the handler into an
// internal error and calls done. A panic with http.ErrAbortHandler continues after
// done, so that net/http closes the connection.
func (w *Response) RecoverAndFinish(done func()) {
	panicked := recover()
	aborted := panicked == http.ErrAbortHandler //nolint:errorlint // net/http compares it the same way
	if panicked != nil && !aborted {
		w.Fail(fmt.Errorf("panic: %v\n%s", panicked, debug.Stack()))
	}
	done()
	if aborted {
		panic(panicked)
	}
}

// WriteJSON sends a value as JSON. If the value cannot be encoded, WriteJSON
// sends nothing and returns the error.
func (w *Response) WriteJSON(status int, v any) error {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode response: %w", err)
	}
	w.WriteBytes(status, "application/json", body)
	return nil
}

// WriteBytes sends a complete body. It is not cached unless Cache-Control is set.
func (w *Response) WriteBytes(status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	if h.Get("X-Content-Type-Options") == "" {
		h.Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}
