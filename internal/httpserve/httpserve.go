// Package httpserve is shared by the API server and the media service. It records
// responses, sends the error envelope, writes the access log, assigns request IDs,
// and checks methods and bearer tokens.
package httpserve

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/internal/redact"
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

	discard bool // an error of ErrorsByStatus was sent in place of the handler's body
}

// WriteHeader sends the header and records the status. Informational statuses
// are not recorded.
func (w *Response) WriteHeader(status int) {
	if err := w.ErrorsByStatus[status]; err != nil && w.Status == 0 && w.Err == nil { // not called by Fail
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

// Hijack hands the connection over to a WebSocket. It returns the connection of the
// listener that was passed to Listen.
func (w *Response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, buffers, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if c, ok := nc.(wrapped); ok {
		nc = c.base().Conn
	}
	return nc, buffers, err
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
	h.Set(RequestIDHeader, w.RequestID)
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
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails only if the client has disconnected
}

// RequestIDHeader carries the request ID in both directions.
const RequestIDHeader = "X-Request-Id"

// validRequestID keeps IDs from forging log lines or growing without bound.
var validRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

type requestIDKey struct{}

// WithRequestID returns a context that carries a request ID.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestIDFrom returns the request ID of a context, or "".
func RequestIDFrom(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// NewRequestID returns the ID that the client sent, or a random one if the
// client sent none or an invalid one. IDs are logged and echoed, so an ID that
// looks like a secret is replaced too.
func NewRequestID(h http.Header) string {
	if id := h.Get(RequestIDHeader); id != "" && validRequestID.MatchString(id) && redact.Text(id) == id {
		return id
	}
	return rand.Text()
}

// Hostname returns the name or address in the Host of a request, without the port. It
// returns "" if the Host is not a valid one for a URL.
func Hostname(host string) string {
	u, err := url.Parse("http://" + host)
	if err != nil || u.Host != host || strings.Contains(host, "%") {
		return ""
	}
	return u.Hostname()
}

// IsLocalHost reports whether the Host of a request is localhost or a loopback address.
func IsLocalHost(host string) bool {
	name := Hostname(host)
	addr, err := netip.ParseAddr(name)
	return strings.EqualFold(name, "localhost") || err == nil && addr.IsLoopback()
}

// MethodNotAllowed returns the error for a method that a path does not accept,
// and sets the Allow header.
func MethodNotAllowed(w http.ResponseWriter, allow string) error {
	w.Header().Set("Allow", allow)
	return fault.New(fault.MethodNotAllowed, "Method not allowed. Use %s.", allow)
}

// HasBearer reports whether the request carries one of the secrets as its bearer
// token. It takes the same time whichever secret matches.
func HasBearer(r *http.Request, secrets ...redact.Secret) bool {
	authorization := r.Header["Authorization"]
	if len(authorization) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(authorization[0], " ")
	got, found := sha256.Sum256([]byte(strings.TrimSpace(token))), 0
	for _, secret := range secrets {
		want := sha256.Sum256([]byte(secret.Reveal()))
		found |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}

// Lengths of log fields with text from the client, which keep a client from filling
// the log with one request.
const (
	maxLoggedPath  = 256
	maxLoggedCause = 1024
)

// logField escapes a text and then cuts it. Characters that a log format would escape
// again, and so make longer, are percent-encoded.
func logField(s string, limit int) string {
	var escaped strings.Builder
	for _, c := range []byte(s[:min(len(s), limit)]) {
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			escaped.WriteByte(c)
		} else {
			fmt.Fprintf(&escaped, "%%%02X", c)
		}
	}
	return escaped.String()[:min(escaped.Len(), limit)]
}

// Log writes the access log line of a finished request. Server errors and
// truncated responses are logged at error level, all others at level.
func (w *Response) Log(ctx context.Context, log *slog.Logger, level slog.Level, elapsed time.Duration, client string, attrs ...slog.Attr) {
	if w.Err != nil && (w.Status >= http.StatusInternalServerError || w.Status < http.StatusBadRequest) {
		level = slog.LevelError
	}
	if !log.Enabled(ctx, level) {
		return
	}
	all := append(make([]slog.Attr, 0, 10),
		slog.String("method", Method(w.Request)),
		slog.String("path", logField(w.Request.URL.Path, maxLoggedPath)), // without the query, which may contain a token
		slog.Int("status", w.Status),
		slog.Int64("bytes", w.Bytes),
		slog.Duration("took", elapsed),
		slog.String("client", client),
	)
	all = append(all, attrs...)
	if w.Err != nil {
		all = append(all, slog.String("code", string(w.Err.Code)))
		switch cause := w.Err.Cause; {
		case cause == nil:
		case w.Err.Code == fault.Internal: // with the stack of a panic
			all = append(all, slog.Any("cause", cause))
		default:
			all = append(all, slog.String("cause", logField(cause.Error(), maxLoggedCause)))
		}
	}
	record := slog.NewRecord(time.Now(), level, "request", 0) // without the source line, which is expensive to find
	record.AddAttrs(all...)
	_ = log.Handler().Handle(ctx, record)
}

// Method returns the request's method for logs and metric labels. It returns "other"
// for unusual methods, so that clients cannot create labels.
func Method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}
