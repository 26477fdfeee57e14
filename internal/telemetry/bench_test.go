package telemetry

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"telapi/internal/httpserve"
)

func BenchmarkLog(b *testing.B) {
	for name, log := range map[string]*slog.Logger{
		"redacted": NewLogger(Options{Writer: io.Discard, Format: "json"}),
		"plain":    slog.New(slog.NewJSONHandler(io.Discard, nil)),
	} {
		b.Run(name, func(b *testing.B) {
			ctx := httpserve.WithRequestID(b.Context(), "req-1")
			b.ReportAllocs()
			for b.Loop() {
				log.InfoContext(ctx, "request", "method", "GET", "route", "/api/v1/runtime/capabilities", "status", 200, "took", time.Millisecond, "client", "192.0.2.1")
			}
		})
	}
}
