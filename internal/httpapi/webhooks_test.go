package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/fault"
)

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
		if got := callbackToken(r, wire.BotItem); got != c.bot {
			t.Errorf("%s: %q on the bot route, want %q", c.name, got, c.bot)
		}
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
	if want := callbackBodyBudget / smallBody / 4; unfinished != want {
		t.Errorf("one address has %d bodies at a time, want %d", unfinished, want)
	}
	for address, limited := range map[string]bool{"2001:db8::2": true, "2001:db8:0:1::1": false, "192.0.2.1": false} {
		x, err := post(address)
		if fault.Is(err, fault.RateLimitExceeded) != limited || !limited && err != nil {
			t.Errorf("%s: error %v, want one: %v", address, err, limited)
		}
		x.body.release()
	}
}
