package httpserve

import (
	"context"
	"crypto/rand"
	"net/http"
	"regexp"

	"telapi/internal/redact"
)

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
