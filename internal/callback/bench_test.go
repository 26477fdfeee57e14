package callback

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/command"
)

// taker is a store that takes everything.
type taker struct{ memory }

func (taker) Deliver(context.Context, DeliverParams) (DeliverResult, error) {
	return DeliverResult{Status: Routed}, nil
}

// BenchmarkAccept is what a usual answer of 1 KB costs the service beside HTTP
// and the store.
func BenchmarkAccept(b *testing.B) {
	body := `{"conversation":{"identifier":{"id":"call-1"}},"from":{"identifier":{"id":"bot-7"}},"messages":{"timestamp":"2026-11-15T09:30:00Z",
		"message":[{"messageId":1,"sequence":1,"content":{"textMessage":{"textPlain":"` + strings.Repeat("word ", 120) + `"},
		"event":{"typing":{"enable":true,"duration":800},"custom":{"name":"config","value":{"sessionParams":{"bargeIn":true,"bargeInMinWordCount":2}}}}}}]}}`
	m := &taker{memory{channel: Channel{Epoch: "e1", Profile: []byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"update_dtmf_config","enabled":true}]}`)}}}
	s := NewService(m, command.PlatformPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now)
	r := request(wire.BotItem, body)
	b.ReportAllocs()
	for b.Loop() {
		if answer, err := s.Accept(b.Context(), r); err != nil || len(answer.Commands) != 1 || answer.Commands[0].Reason != "" {
			b.Fatal(answer, err)
		}
	}
}
