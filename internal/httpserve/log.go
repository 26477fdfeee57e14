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
	path := w.Request.URL.Path // without the query, which may contain a token
	all := append(make([]slog.Attr, 0, 10),
		slog.String("method", Method(w.Request)),
		slog.String("path", path[:min(len(path), maxLoggedPath)]),
		slog.Int("status", w.Status),
		slog.Int64("bytes", w.Bytes),
		slog.Duration("took", took),
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

// Method returns the request's method for logs and metric labels, or "other":
// clients must not create labels.
func Method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}
