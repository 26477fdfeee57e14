package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/test/testkit"
)

// postBody sends a body to a server whose route POST /try calls handle. A
// length of -1 is not declared.
func postBody(s *Server, body io.Reader, length int64, handle func(*exchange, *http.Request, []byte) error) *httptest.ResponseRecorder {
	return postBodyOf(s, "", body, length, handle)
}

// postBodyOf is postBody with the team whose key was sent.
func postBodyOf(s *Server, teamID string, body io.Reader, length int64, handle func(*exchange, *http.Request, []byte) error) *httptest.ResponseRecorder {
	s.mux = s.newMux([]Route{route("POST", "/try", public, unlimited, func(x *exchange, r *http.Request) error {
		x.holder = teamID
		return s.withBody(handle)(x, r)
	})})
	r, w := httptest.NewRequest("POST", "/try", body), httptest.NewRecorder()
	r.ContentLength = length
	r.Header.Set("Content-Type", "application/json")
	s.ServeHTTP(w, r)
	return w
}

// bodyBytes returns the memory that is reserved for bodies.
func (s *Server) bodyBytes() int64 { return s.smallBodies.Used() + s.largeBodies.Used() }

func TestBodiesOfAllLengthsAreReadCompletely(t *testing.T) {
	for _, size := range []int{0, 1, firstRead - 1, firstRead, firstRead + 1, smallBody - 1, smallBody, smallBody + 1, maxBody} {
		want := strings.Repeat("a", size)
		for _, length := range []int64{int64(size), -1} {
			s, _ := newTestServer(nil)
			w := postBody(s, io.MultiReader(strings.NewReader(want), strings.NewReader("")), length, func(x *exchange, _ *http.Request, body []byte) error {
				if string(body) != want {
					t.Errorf("%d bytes, declared %d: read %d bytes", size, length, len(body))
				}
				if used := s.bodyBytes(); used < int64(size) || used != int64(cap(body)) {
					t.Errorf("%d bytes, declared %d: %d bytes reserved for a buffer of %d", size, length, used, cap(body))
				}
				return nil
			})
			if w.Code != http.StatusOK || s.bodyBytes() != 0 {
				t.Errorf("%d bytes, declared %d: status %d, %d bytes still reserved", size, length, w.Code, s.bodyBytes())
			}
		}
	}
	for _, length := range []int64{maxBody + 1, -1} {
		s, _ := newTestServer(nil)
		if w := postBody(s, strings.NewReader(strings.Repeat("a", maxBody+1)), length, nil); w.Code != http.StatusRequestEntityTooLarge || s.bodyBytes() != 0 {
			t.Errorf("too large, declared %d: status %d, %d bytes still reserved", length, w.Code, s.bodyBytes())
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
				if used := s.bodyBytes(); used > max(firstRead, 2*int64(sent)) {
					t.Errorf("declared %d: %d bytes reserved after %d", length, used, sent)
				}
			}
			_ = client.CloseWithError(io.ErrUnexpectedEOF)
			if status := <-done; status != http.StatusBadRequest || s.bodyBytes() != 0 {
				t.Errorf("declared %d: status %d, %d bytes still reserved", length, status, s.bodyBytes())
			}
		}
	})
}

func TestTeamsShareTheMemoryForBodies(t *testing.T) {
	const small, large = smallBodyBudget / 4, largeBodyBudget / 4 // shares of a team
	for name, c := range map[string]struct {
		small, large int64 // used by team a
		others       int64 // used by other teams, of the memory for large bodies
		team         string
		size         int
		status       int
	}{
		"large fits":                   {0, large - maxBody, 0, "a", maxBody, 200},
		"large does not":               {0, large - maxBody + 1, 0, "a", maxBody, 429},
		"large of another team":        {small, large, 0, "b", maxBody, 200},
		"small fits":                   {small - smallBody, large, 0, "a", smallBody, 200},
		"small does not":               {small - smallBody + 1, 0, 0, "a", smallBody, 429},
		"small of another team":        {small, large, 0, "b", smallBody, 200},
		"large, but nothing is left":   {0, 0, largeBodyBudget, "b", maxBody, 503},
		"small, but no large one fits": {0, 0, largeBodyBudget, "b", smallBody, 200},
	} {
		s, _ := newTestServer(nil)
		testkit.Must(t, errors.Join(s.smallBodies.Take("a", c.small), s.largeBodies.Take("a", c.large), s.largeBodies.Take("", c.others)))
		before := s.bodyBytes()
		w := postBodyOf(s, c.team, strings.NewReader(strings.Repeat("a", c.size)), int64(c.size), func(*exchange, *http.Request, []byte) error { return nil })
		if w.Code != c.status || (w.Header().Get("Retry-After") != "") != (c.status >= 400) || s.bodyBytes() != before {
			t.Errorf("%s: status %d with Retry-After %q, %d bytes reserved; want %d and %d bytes",
				name, w.Code, w.Header().Get("Retry-After"), s.bodyBytes(), c.status, before)
		}
	}
}

func TestLargestBodyFitsIntoTheSmallestShare(t *testing.T) {
	const smallest = 5 // TEAM_SHARE_PERCENT
	if share := ratelimit.NewBudget(prometheus.NewRegistry(), "bytes", "bytes", largeBodyBudget, smallest).Share(); share <= maxLintBody {
		t.Errorf("a team may use %d bytes, want more than %d", share, maxLintBody)
	}
}

func TestLargeBodyIsCheckedBeforeMoreIsRead(t *testing.T) {
	rejected := errors.New("rejected")
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
		body, err := s.readBody(x, r, maxBody, func() error { checked = true; return rejected })
		if checked != c.checked || errors.Is(err, rejected) != c.checked || (len(body) == c.size) == c.checked {
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
		testkit.RunBubble(t, name, func(t *testing.T) {
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
			testkit.Equal(t, "answer", <-status, "HTTP/1.1 400 Bad Request")
			_ = conn.Close()
		})
	}
}

// The profile counts too: it takes as much work as a callback.
func TestLargeLintRequestWaitsForLargeCallbacks(t *testing.T) {
	s, _ := newTestServer(nil)
	for range cap(s.largeCallbacks) {
		s.largeCallbacks <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
	body := func(size int) []byte {
		const start, end = `{"kind":"bot","profile":{"x":"`, `"}}`
		return []byte(start + strings.Repeat("a", size-len(start)-len(end)) + end)
	}
	testkit.WantFault(t, "small request", s.lintCallback(nil, r, body(smallBody)), fault.Validation)
	testkit.WantError(t, "large request", s.lintCallback(nil, r, body(smallBody+1)), context.Canceled)
}

// credentialStore has a valid credential for every stream.
type credentialStore struct{ callback.Store }

func (credentialStore) Channel(context.Context, string) (callback.Channel, error) {
	return callback.Channel{}, nil
}

func (credentialStore) CheckCredential(context.Context, callback.Credential) (callback.CredentialState, error) {
	return callback.CredentialState{Status: callback.Usable, TimeLeft: time.Hour, OfWorkItem: true}, nil
}

func TestLongLineOfStreamWaitsForLargeCallbacks(t *testing.T) {
	accept := func(t *testing.T, size int) error {
		s, _ := newTestServer(nil)
		s.deps.Callbacks = callback.NewService(credentialStore{}, nil, command.PlatformPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now, 25)
		for range cap(s.largeCallbacks) {
			s.largeCallbacks <- struct{}{}
		}
		const start, end = `{"delta":"`, "\"}\n"
		r := httptest.NewRequest("POST", "/try", strings.NewReader(start+strings.Repeat(" ", size-len(start)-len(end))+end))
		x := &exchange{ctx: t.Context()}
		x.ResponseWriter = httptest.NewRecorder()
		_, err := s.acceptStream(x, r, newStreamReader(x, r), callback.StreamRequest{
			Credential: callback.Credential{ChannelID: "c", Kind: wire.LLMItem, WorkItemID: "w", Digest: "d"}, MediaType: callback.NDJSON,
		})
		return err
	}
	testkit.RunBubble(t, "short line", func(t *testing.T) {
		testkit.WantFault(t, "end of the stream", accept(t, smallBody), fault.MalformedJSON)
	})
	testkit.RunBubble(t, "long line", func(t *testing.T) {
		testkit.WantError(t, "line", accept(t, smallBody+1), context.DeadlineExceeded)
	})
}

func TestCallbackTokenComesOnlyFromItsHeader(t *testing.T) {
	for _, c := range []struct {
		name   string
		header http.Header
		bot    string // token on the bot route
		others string // token on the LLM and tool routes
	}{
		{"raw", http.Header{"Token": {"abc"}}, "abc", "abc"},
		{"no header", http.Header{}, "", ""},
		{"empty", http.Header{"Token": {""}}, "", ""},
		{"bearer in token", http.Header{"Token": {"Bearer abc"}}, "", ""},
		{"bearer in token, other case", http.Header{"Token": {"bEARER abc"}}, "", ""},
		{"bearer without token", http.Header{"Token": {"Bearer"}}, "", ""},
		{"twice", http.Header{"Token": {"abc", "abc"}}, "", ""},
		{"bearer", http.Header{"Authorization": {"Bearer abc"}}, "", "abc"},
		{"basic", http.Header{"Authorization": {"Basic abc"}}, "", ""},
		{"bearer twice", http.Header{"Authorization": {"Bearer abc", "Bearer abc"}}, "", ""},
		{"token and bearer", http.Header{"Token": {"abc"}, "Authorization": {"Bearer def"}}, "abc", "abc"},
		{"invalid token and bearer", http.Header{"Token": {"Bearer abc"}, "Authorization": {"Bearer abc"}}, "", ""},
	} {
		r := httptest.NewRequest("POST", "/x?token=abc", nil)
		r.Header = c.header
		testkit.Equal(t, fmt.Sprintf("%s: on the bot route", c.name), callbackToken(r, wire.BotItem), c.bot)
		for _, kind := range []wire.WorkItemKind{wire.LLMItem, wire.ToolItem} {
			if got := callbackToken(r, kind); got != c.others {
				t.Errorf("%s: %q on the %s route, want %q", c.name, got, kind, c.others)
			}
		}
	}
}

// A client with a made-up token must not take the memory for the bodies of others.
func TestAddressesShareTheMemoryForCallbacks(t *testing.T) {
	s, _ := newTestServer(nil)
	if err := s.smallBodies.Take("", smallBodyBudget); err != nil { // of other routes
		t.Fatal(err)
	}
	s.deps.Callbacks = callback.NewService(nil, nil, command.PlatformPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now, 25)
	post := func(address string) (*exchange, error) {
		r := httptest.NewRequest("POST", "/try", strings.NewReader(strings.Repeat(" ", smallBody)))
		r.Header.Set("Content-Type", "application/json")
		x := &exchange{client: netip.MustParseAddr(address), ctx: r.Context()}
		x.ResponseWriter = httptest.NewRecorder()
		_, err := s.readCallback(x, r, callback.Credential{Digest: "unknown"})
		return x, err
	}
	unfinished := 0
	for ; unfinished < callbackBodyBudget/smallBody; unfinished++ { // the first address keeps what it gets
		if _, err := post("2001:db8::1"); err != nil {
			break
		}
	}
	testkit.Equal(t, "one address has bodies at a time", unfinished, callbackBodyBudget/smallBody/4)
	for address, limited := range map[string]bool{"2001:db8::2": true, "2001:db8:0:1::1": false, "192.0.2.1": false} {
		x, err := post(address)
		if fault.Is(err, fault.RateLimitExceeded) != limited || !limited && err != nil {
			t.Errorf("%s: error %v, want one: %v", address, err, limited)
		}
		x.body.release()
	}
}
