package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"telapi/callruntime/wire"
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
