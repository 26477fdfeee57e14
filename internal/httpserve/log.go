package httpserve

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// maxLoggedPath keeps a client from filling the log with one request.
const maxLoggedPath = 256

// Log writes the access log line of a finished request. Server errors and
// responses that broke off are logged at error level, all others at level.
func (w *Response) Log(ctx context.Context, log *slog.Logger, level slog.Level, took time.Duration, client string, attrs ...slog.Attr) {
	if w.Err != nil && (w.Status >= http.StatusInternalServerError || w.Status < http.StatusBadRequest) {
		level = slog.LevelError
	}
	if !log.Enabled(ctx, level) {
		return
	}
	record := slog.NewRecord(time.Now(), level, "request", 0) // without the source line, which is expensive to find
	path := w.Request.URL.Path                                // without the query, which may contain a token
	record.AddAttrs(
		slog.String("method", Method(w.Request)),
		slog.String("path", path[:min(len(path), maxLoggedPath)]),
		slog.Int("status", w.Status),
		slog.Int64("bytes", w.Bytes),
		slog.Duration("took", took),
		slog.String("client", client),
	)
	record.AddAttrs(attrs...)
	if w.Err != nil {
		record.AddAttrs(slog.String("code", string(w.Err.Code)))
		if w.Err.Cause != nil {
			record.AddAttrs(slog.Any("cause", w.Err.Cause))
		}
	}
	_ = log.Handler().Handle(ctx, record)
}

// Method returns the request's method for logs and metric labels, or "other":
// clients must not create labels.
func Method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}
