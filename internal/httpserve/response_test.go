package httpserve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

// newResponse returns a response and the recorder that it sends to.
func newResponse() (*Response, *httptest.ResponseRecorder) {
	sent, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x?token=secret", nil)
	r.Header.Set(RequestIDHeader, "req-1")
	return &Response{ResponseWriter: sent, Request: r, Realm: "test"}, sent
}

func TestFailSendsEnvelope(t *testing.T) {
	w, sent := newResponse()
	w.Fail(fault.New(fault.Unauthorized, "No token.").WithCause(errors.New("hidden")))
	if want := `{"error":{"code":"UNAUTHORIZED","message":"No token.","requestId":"req-1"}}`; sent.Code != 401 || sent.Body.String() != want {
		t.Errorf("sent %d %s, want 401 %s", sent.Code, sent.Body, want)
	}
	testkit.Equal(t, "WWW-Authenticate", sent.Header().Get("WWW-Authenticate"), `Bearer realm="test"`)
	if w.Status != 401 || w.Bytes != int64(sent.Body.Len()) {
		t.Errorf("recorded status %d and %d bytes, want 401 and %d", w.Status, w.Bytes, sent.Body.Len())
	}
}

func TestFailWithDetailsThatCannotBeEncoded(t *testing.T) {
	w, sent := newResponse()
	w.Fail(fault.New(fault.Validation, "Bad.").WithDetails(func() {}))
	if sent.Code != 500 || !strings.Contains(sent.Body.String(), `"INTERNAL_ERROR"`) || !strings.Contains(w.Err.Error(), "encode error details") {
		t.Errorf("sent %d %s and recorded %v, want 500 INTERNAL_ERROR with the cause", sent.Code, sent.Body, w.Err)
	}
}

func TestEnvelopeReplacesPlainTextError(t *testing.T) {
	w, sent := newResponse()
	w.ErrorsByStatus = map[int]*fault.Error{http.StatusPreconditionFailed: fault.New(fault.PreconditionFailed, "Changed.")}
	http.Error(w, "plain text", http.StatusPreconditionFailed)
	if got := sent.Body.String(); sent.Code != 412 || !strings.Contains(got, `"Changed."`) || strings.Contains(got, "plain text") {
		t.Errorf("sent %d %s, want 412 with the envelope only", sent.Code, got)
	}
}

func TestReadFromRecordsStatusAndLength(t *testing.T) {
	w, _ := newResponse()
	if n, err := io.Copy(w, strings.NewReader("content")); n != 7 || err != nil || w.Status != 200 || w.Bytes != 7 {
		t.Errorf("copied %d (error %v), recorded status %d and %d bytes; want 7, 200 and 7", n, err, w.Status, w.Bytes)
	}
}

func TestAccessLogLevels(t *testing.T) {
	internal := fault.New(fault.Internal, "Failed.").WithCause(errors.New("the cause"))
	for name, c := range map[string]struct {
		status int
		err    *fault.Error
		want   string
	}{
		"success":           {200, nil, `"level":"INFO"`},
		"client error":      {404, fault.New(fault.NotFound, "Not found."), `"level":"INFO"`},
		"server error":      {500, internal, `"level":"ERROR"`},
		"truncated":         {200, internal, `"level":"ERROR"`},
		"unhealthy":         {503, nil, `"level":"INFO"`},
		"code in the log":   {500, internal, `"code":"INTERNAL_ERROR"`},
		"cause in the log":  {500, internal, `"cause":"the cause"`},
		"path has no query": {200, nil, `"path":"/x","status":200`},
	} {
		w, _ := newResponse()
		w.Status, w.Err = c.status, c.err
		var log bytes.Buffer
		w.Log(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)), slog.LevelInfo, 0, "192.0.2.1")
		if !strings.Contains(log.String(), c.want) {
			t.Errorf("%s: logged %s, want %s", name, &log, c.want)
		}
		log.Reset()
		w.Log(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)), slog.LevelDebug, 0, "192.0.2.1")
		if isError := strings.Contains(c.want, "ERROR") || c.err == internal; (log.Len() > 0) != isError {
			t.Errorf("%s: logged %q although the level is debug, want only errors", name, &log)
		}
	}
}

func TestBearerToken(t *testing.T) {
	secrets := []redact.Secret{"one", "two"}
	for _, c := range []struct {
		sent []string
		want bool
	}{
		{[]string{"Bearer one"}, true},
		{[]string{"bearer  two "}, true},
		{[]string{"Bearer three"}, false},
		{[]string{"Bearer "}, false},
		{[]string{"Basic one"}, false},
		{[]string{"Bearer one", "Bearer one"}, false},
		{nil, false},
	} {
		r := &http.Request{Header: http.Header{"Authorization": c.sent}}
		testkit.Equal(t, fmt.Sprintf("HasBearer with Authorization %q", c.sent), HasBearer(r, secrets...), c.want)
	}
}

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
		testkit.Equal(t, fmt.Sprintf("logField(%q)", in), logField(in, 14), want)
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

func newRequestID(sent string) string {
	return NewRequestID(http.Header{RequestIDHeader: {sent}})
}

func TestOnlyValidRequestIDIsKept(t *testing.T) {
	for id, kept := range map[string]bool{
		"a": true, "A-1_b.c": true, strings.Repeat("x", 128): true,
		"": false, " ": false, "a b": false, "a\nb": false, "ä": false, "a/b": false, "\xff": false, strings.Repeat("x", 129): false,
		"tk_abcdefghijklmnop_abcdefghijklmnopqrstuvwxyz0123456789abcdefg": false,
	} {
		if got := newRequestID(id); (got == id) != kept || got == "" || newRequestID(got) != got {
			t.Errorf("NewRequestID(%q) = %q, want a valid ID, the same: %v", id, got, kept)
		}
	}
}

func FuzzNewRequestID(f *testing.F) {
	f.Add("abc-123")
	f.Add("a\r\nb")
	f.Fuzz(func(t *testing.T, sent string) {
		got := newRequestID(sent)
		if got == "" || len(got) > 128 || newRequestID(got) != got {
			t.Errorf("NewRequestID(%q) = %q, want a valid ID of at most 128 characters", sent, got)
		}
	})
}
