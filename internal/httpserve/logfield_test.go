package httpserve

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
)

func TestLogFieldIsCutAfterEscaping(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"/plain/path":            "/plain/path",
		"/exactly/limit":         "/exactly/limit",
		"/longer/than/the/limit": "/longer/than/t",
		"/a\x00b":                "/a%00b",
		"/\"quoted\\":            "/%22quoted%5C",
		"/\xff\xfe":              "/%FF%FE",
		"/é+4915112345":          "/%C3%A9+491511",
		"aaaaaaaaaaaa\n\n":       "aaaaaaaaaaaa%0",
	} {
		if got := logField(in, 14); got != want {
			t.Errorf("logField(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLogLineOfAHostileRequestIsShort(t *testing.T) {
	for name, format := range map[string]func(*bytes.Buffer) slog.Handler{
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		for _, char := range []string{"a", "\x00", "\xff", "\\", "\"", "é", "\u2028"} {
			r := httptest.NewRequest("GET", "/", nil)
			r.URL.Path = "/" + strings.Repeat(char, 30_000)
			w := Response{ResponseWriter: httptest.NewRecorder(), Request: r}
			w.Fail(fault.New(fault.MalformedJSON, "x").WithCause(&textError{strings.Repeat(char, 30_000)}))
			var log bytes.Buffer
			w.Log(t.Context(), slog.New(format(&log)), slog.LevelInfo, time.Second, "192.0.2.1")
			if n := log.Len(); n > maxLoggedPath+maxLoggedCause+300 {
				t.Errorf("%s: %d bytes logged for %q, want at most %d", name, n, char, maxLoggedPath+maxLoggedCause+300)
			}
		}
	}
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }
