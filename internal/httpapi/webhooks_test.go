package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"telapi/callruntime/wire"
)

func TestCallbackTokenIsTakenFromItsHeaderAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		header http.Header
		bot    string // what counts on the bot's route
		others string // on those of models and tools
	}{
		{"raw", http.Header{"Token": {"abc"}}, "abc", "abc"},
		{"nothing", http.Header{}, "", ""},
		{"empty", http.Header{"Token": {""}}, "", ""},
		{"bearer in token", http.Header{"Token": {"Bearer abc"}}, "", ""},
		{"bearer in token, otherwise spelt", http.Header{"Token": {"bEARER abc"}}, "", ""},
		{"the word alone", http.Header{"Token": {"Bearer"}}, "", ""},
		{"twice", http.Header{"Token": {"abc", "abc"}}, "", ""},
		{"bearer", http.Header{"Authorization": {"Bearer abc"}}, "", "abc"},
		{"basic", http.Header{"Authorization": {"Basic abc"}}, "", ""},
		{"bearer twice", http.Header{"Authorization": {"Bearer abc", "Bearer abc"}}, "", ""},
		{"both, which agree or not", http.Header{"Token": {"abc"}, "Authorization": {"Bearer def"}}, "abc", "abc"},
		{"a bad token beside a bearer", http.Header{"Token": {"Bearer abc"}, "Authorization": {"Bearer abc"}}, "", ""},
	} {
		r := httptest.NewRequest("POST", "/x?token=abc", nil)
		r.Header = c.header
		if got := callbackToken(r, wire.BotItem); got != c.bot {
			t.Errorf("%s: %q on the bot's route, want %q", c.name, got, c.bot)
		}
		for _, kind := range []wire.WorkItemKind{wire.LLMItem, wire.ToolItem} {
			if got := callbackToken(r, kind); got != c.others {
				t.Errorf("%s: %q on the route of %s, want %q", c.name, got, kind, c.others)
			}
		}
	}
}
