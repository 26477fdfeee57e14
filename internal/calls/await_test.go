package calls_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

func TestLoggedWorkItemOmitsCredential(t *testing.T) {
	var out strings.Builder
	item := calls.WorkItem{ID: "item-1", Kind: wire.LLMItem, Token: "cbt_secret", Path: "/p", ExpiresAt: time.Now()}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("awaited", "item", item)
	}
	if got := out.String(); strings.Count(got, item.ID) != 2 || strings.Contains(got, "secret") {
		t.Errorf("logged %s, want the ID twice and no token", got)
	}
}

// The service would reject the callbacks.
func TestTokenWithOtherWorkItemIDIsInvalid(t *testing.T) {
	token := calls.NewToken() + ".item-2"
	if _, err := new(calls.Channel).Await(t.Context(), calls.AwaitOptions{WorkItemID: "item-1", Token: token}); err == nil ||
		!strings.Contains(err.Error(), `"item-1"`) || strings.Contains(err.Error(), token) {
		t.Errorf("got %v, want an error with the ID of the work item and without the token", err)
	}
}
