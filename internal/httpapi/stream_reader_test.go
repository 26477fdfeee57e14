package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"telapi/test/testkit"
)

// An interruption ends the read of the server that waits for the next request, and with it the
// connection's context. The connection must not be used for another request then.
func TestConnectionOfInterruptedStreamIsNotUsedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		act      func(*streamReader)
		reusable bool
	}{
		"not interrupted":      {func(*streamReader) {}, true},
		"interrupted at end":   {func(s *streamReader) { s.interrupt(errStreamRestart) }, false},
		"interrupted too late": {func(s *streamReader) { s.finish(); s.interrupt(errStreamRestart) }, true},
		"deadline has expired": {func(s *streamReader) { s.deadline = time.Now() }, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s := &streamReader{body: r.Body, conn: http.NewResponseController(w), used: true}
			for err := error(nil); !errors.Is(err, io.EOF); _, err = s.read(time.Now().Add(testkit.Timeout)) {
			}
			tt.act(s)
			if got := s.finish(); got != tt.reusable {
				t.Errorf("%s: the connection is reusable: %t, want %t", name, got, tt.reusable)
			}
		}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("data"))
		testkit.Must(t, err)
		resp, err := http.DefaultClient.Do(req)
		testkit.Must(t, err)
		_ = resp.Body.Close()
		server.Close()
	}
}
