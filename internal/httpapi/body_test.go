package httpapi

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
)

// postBody sends a body to a server whose route POST /try calls handle. A
// length of -1 is not declared.
func postBody(s *Server, body io.Reader, length int64, handle func(*exchange, *http.Request, []byte) error) *httptest.ResponseRecorder {
	s.mux = s.newMux([]Route{{"POST", "/try", public, "", "", always, s.withBody(handle)}})
	r, w := httptest.NewRequest("POST", "/try", body), httptest.NewRecorder()
	r.ContentLength = length
	r.Header.Set("Content-Type", "application/json")
	s.ServeHTTP(w, r)
	return w
}

func TestBodiesOfAllLengthsAreReadCompletely(t *testing.T) {
	for _, size := range []int{0, 1, firstRead - 1, firstRead, firstRead + 1, smallBody - 1, smallBody, smallBody + 1, maxBody} {
		want := strings.Repeat("a", size)
		for _, length := range []int64{int64(size), -1} {
			s, _ := newTestServer(nil)
			w := postBody(s, io.MultiReader(strings.NewReader(want), strings.NewReader("")), length, func(x *exchange, _ *http.Request, body []byte) error {
				if string(body) != want {
					t.Errorf("%d bytes, declared %d: read %d bytes", size, length, len(body))
				}
				if used := s.bodies.Load(); used < int64(size) || used != int64(cap(body)) {
					t.Errorf("%d bytes, declared %d: %d bytes reserved for a buffer of %d", size, length, used, cap(body))
				}
				return nil
			})
			if w.Code != http.StatusOK || s.bodies.Load() != 0 {
				t.Errorf("%d bytes, declared %d: status %d, %d bytes still reserved", size, length, w.Code, s.bodies.Load())
			}
		}
	}
	for _, length := range []int64{maxBody + 1, -1} {
		s, _ := newTestServer(nil)
		if w := postBody(s, strings.NewReader(strings.Repeat("a", maxBody+1)), length, nil); w.Code != http.StatusRequestEntityTooLarge || s.bodies.Load() != 0 {
			t.Errorf("too large, declared %d: status %d, %d bytes still reserved", length, w.Code, s.bodies.Load())
		}
	}
}

func TestMemoryOfABodyGrowsWithWhatHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, length := range []int64{maxBody, -1} {
			s, _ := newTestServer(nil)
			body, client := io.Pipe()
			done := make(chan int)
			go func() { done <- postBody(s, body, length, nil).Code }()
			sent := 0
			for _, size := range []int{1, firstRead, 3 * firstRead} {
				_, _ = io.WriteString(client, strings.Repeat("a", size-sent))
				sent = size
				synctest.Wait()
				if used := s.bodies.Load(); used > max(firstRead, 2*int64(sent)) {
					t.Errorf("declared %d: %d bytes reserved after %d", length, used, sent)
				}
			}
			_ = client.CloseWithError(io.ErrUnexpectedEOF)
			if status := <-done; status != http.StatusBadRequest || s.bodies.Load() != 0 {
				t.Errorf("declared %d: status %d, %d bytes still reserved", length, status, s.bodies.Load())
			}
		}
	})
}

func TestSmallBodiesComeFirstWhenTheBudgetIsUsedUp(t *testing.T) {
	for name, c := range map[string]struct {
		used   int64 // by other requests
		size   int
		status int
	}{
		"large fits":     {largeBodyBudget - maxBody, maxBody, 200},
		"large does not": {largeBodyBudget - maxBody + 1, maxBody, 503},
		"small fits":     {bodyBudget - smallBody, smallBody, 200},
		"small does not": {bodyBudget - smallBody + 1, smallBody, 503},
	} {
		s, _ := newTestServer(nil)
		s.bodies.Store(c.used)
		w := postBody(s, strings.NewReader(strings.Repeat("a", c.size)), int64(c.size), func(*exchange, *http.Request, []byte) error { return nil })
		if w.Code != c.status || (w.Header().Get("Retry-After") != "") != (c.status == 503) || s.bodies.Load() != c.used {
			t.Errorf("%s: status %d with Retry-After %q, budget %d; want %d and budget %d",
				name, w.Code, w.Header().Get("Retry-After"), s.bodies.Load(), c.status, c.used)
		}
	}
}

func TestLargeBodyIsCheckedBeforeMoreIsRead(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		size    int
		checked bool
	}{"small": {smallBody, false}, "large": {smallBody + 1, true}, "much larger": {maxBody, true}} {
		s, _ := newTestServer(nil)
		sent := strings.NewReader(strings.Repeat("a", c.size))
		r := httptest.NewRequest("POST", "/try", io.MultiReader(sent)) // of unknown length
		x := &exchange{}
		x.ResponseWriter = httptest.NewRecorder()
		checked := false
		body, err := s.readBody(x, r, maxBody, func() error { checked = true; return refused })
		if checked != c.checked || errors.Is(err, refused) != c.checked || (len(body) == c.size) == c.checked {
			t.Errorf("%s: checked %t, error %v, body of %d bytes", name, checked, err, len(body))
		}
		if rest := c.size - sent.Len(); c.checked && rest > smallBody+1 {
			t.Errorf("%s: %d bytes read before the check", name, rest)
		}
	}
}

func TestIncompleteBodyIsMalformedEvenIfTheClientIsGone(t *testing.T) {
	s, _ := newTestServer(nil)
	x := &exchange{}
	x.ResponseWriter = httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/try", io.MultiReader(strings.NewReader("{"), failingReader{}))
	if _, err := s.readBody(x, r, maxBody, nil); !fault.Is(err, fault.MalformedJSON) {
		t.Errorf("error %v, want %s", err, fault.MalformedJSON)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestSlowBodyIsCutByItsRate(t *testing.T) {
	for name, c := range map[string]struct {
		chunk  int // bytes per second
		within time.Duration
	}{
		"stopped":          {0, bodyGrace + time.Second},
		"a byte a second":  {1, bodyGrace + time.Second},
		"half of the rate": {minBodyRate / 2, 2*bodyGrace + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, closed := servePipe(t)
				start := time.Now()
				status := make(chan string, 1)
				go func() {
					answer, _ := io.ReadAll(conn)
					status <- strings.TrimSuffix(strings.SplitN(string(answer)+"\r\n", "\r\n", 2)[0], "\r")
				}()
				_, _ = io.WriteString(conn, "POST /try HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{")
				for {
					if _, err := io.WriteString(conn, strings.Repeat("a", c.chunk)); err != nil || time.Since(start) > time.Minute {
						break
					}
					time.Sleep(time.Second)
				}
				if after := <-closed; after > c.within {
					t.Errorf("disconnected after %s, want at most %s", after, c.within)
				}
				if got := <-status; got != "HTTP/1.1 400 Bad Request" {
					t.Errorf("answered %q, want 400", got)
				}
				_ = conn.Close()
			})
		})
	}
}
