//go:build !race

// The race detector makes pools drop buffers, which adds allocations.

package callback_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/command"
)

// acceptingStore routes every delivery without storing it.
type acceptingStore struct{ callback.Store }

func (acceptingStore) Channel(context.Context, string) (callback.Channel, error) {
	return callback.Channel{Epoch: "e1", Profile: []byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"update_dtmf_config","enabled":true}]}`)}, nil
}

func (acceptingStore) Deliver(context.Context, callback.DeliverParams) (callback.DeliverResult, error) {
	return callback.DeliverResult{Status: callback.Routed}, nil
}

// acceptTypical returns a function that accepts a typical callback of 1 KB, without HTTP
// and the store.
func acceptTypical(tb testing.TB) func() {
	body := `{"conversation":{"identifier":{"id":"call-1"}},"from":{"identifier":{"id":"bot-7"}},"messages":{"timestamp":"2026-11-15T09:30:00Z",
		"message":[{"messageId":1,"sequence":1,"content":{"textMessage":{"textPlain":"` + strings.Repeat("word ", 120) + `"},
		"event":{"typing":{"enable":true,"duration":800},"custom":{"name":"config","value":{"sessionParams":{"bargeIn":true,"bargeInMinWordCount":2}}}}}}]}}`
	s := callback.NewService(acceptingStore{}, nil, command.PlatformPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now, 25)
	r := callback.Request{
		Credential: callback.Credential{ChannelID: channelID, Kind: wire.BotItem, Digest: "d1"}, Body: []byte(body), Received: time.Now(),
	}
	return func() {
		receipt, err := s.Accept(tb.Context(), r)
		if err != nil || len(receipt.Commands) != 1 || receipt.Commands[0].Reason != "" {
			tb.Fatal(receipt, err)
		}
		if _, err := json.Marshal(&receipt); err != nil {
			tb.Fatal(err)
		}
	}
}

func BenchmarkAccept(b *testing.B) {
	accept := acceptTypical(b)
	b.ReportAllocs()
	for b.Loop() {
		accept()
	}
}

// There are 66 allocations.
func TestCallbackNeedsFewAllocations(t *testing.T) {
	if n := testing.AllocsPerRun(100, acceptTypical(t)); n > 75 {
		t.Errorf("%.0f allocations per callback, want at most 75", n)
	}
}
