package httpserve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"telapi/internal/fault"
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

// maxLoggedPath keeps a client from filling the log with one request.
const maxLoggedPath = 256

// Log writes the access log line of a finished request. Server errors and
// truncated responses are logged at error level, all others at level.
func (w *Response) Log(ctx context.Context, log *slog.Logger, level slog.Level, elapsed time.Duration, client string, attrs ...slog.Attr) {
	if w.Err != nil && (w.Status >= http.StatusInternalServerError || w.Status < http.StatusBadRequest) {
		level = slog.LevelError
	}
	if !log.Enabled(ctx, level) {
		return
	}
	path := w.Request.URL.Path // without the query, which may contain a token
	all := append(make([]slog.Attr, 0, 10),
		slog.String("method", Method(w.Request)),
		slog.String("path", path[:min(len(path), maxLoggedPath)]),
		slog.Int("status", w.Status),
		slog.Int64("bytes", w.Bytes),
		slog.Duration("took", elapsed),
		slog.String("client", client),
	)
	all = append(all, attrs...)
	if w.Err != nil {
		all = append(all, slog.String("code", string(w.Err.Code)))
		if w.Err.Cause != nil {
			all = append(all, slog.Any("cause", w.Err.Cause))
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
