package callruntime_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

func TestLoggedWorkItemOmitsCredential(t *testing.T) {
	var out strings.Builder
	item := callruntime.WorkItem{ID: "item-1", Kind: wire.LLMItem, Token: "cbt_secret", Path: "/p", ExpiresAt: time.Now()}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("awaited", "item", item)
	}
	if got := out.String(); strings.Count(got, item.ID) != 2 || strings.Contains(got, "secret") {
		t.Errorf("logged %s, want the ID twice and no token", got)
	}
}
