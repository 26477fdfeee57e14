package demo

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// A client decides how large events are.
func TestLargeEventsAreShortened(t *testing.T) {
	text := strings.Repeat("ü", 1<<19)
	raw := jsontext.Value(`{"text":"` + text + `"}`)
	e := entryEvent(calls.Delivery{Entry: wire.Entry{Kind: wire.KindBotMessage, BotMessage: wire.BotMessage{Text: text}}, JSON: raw})
	if want := "bot message: " + strings.Repeat("ü", maxTitle-len("bot message: ")) + "…"; e.Title != want || string(e.Data) != `{"omittedBytes":1048587}` {
		t.Errorf("title of %d bytes, data %.100s; want %d characters and the length of the data", len(e.Title), e.Data, maxTitle)
	}
	h := NewHub()
	for range 1000 {
		h.Publish("s", LaneBot, "", EventHTTP, text, strings.Repeat("x", maxData-2))
	}
	past, cancel := h.Subscribe("s", nil)
	cancel()
	bytes := 0
	for _, e := range past {
		bytes += len(e.Title) + len(e.Data)
	}
	if bytes > maxSessionBytes || len(past) < 20 {
		t.Errorf("%d events with %d bytes are kept, want at most %d bytes", len(past), bytes, maxSessionBytes)
	}
}

func TestTitleSummarizesEntry(t *testing.T) {
	for want, e := range map[string]wire.Entry{
		`provider error: {"code":"X"}`: {Kind: wire.KindProviderError, Error: jsontext.Value(`{"code":"X"}`)},
		`bot event mood "good"`:        {Kind: wire.KindBotEvent, Event: "mood", Value: jsontext.Value(`"good"`)},
		`bot event mood`:               {Kind: wire.KindBotEvent, Event: "mood"},
		`bot message: Hello`:           {Kind: wire.KindBotMessage, BotMessage: wire.BotMessage{Text: "Hello"}},
		`tool result: [1]`:             {Kind: wire.KindToolResult, Result: jsontext.Value(`[1]`)},
		`tool timed out`:               {Kind: wire.KindTimeout, WorkItemKind: "tool"},
		`chat: hi`:                     {Kind: wire.KindFrame, Message: &wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"hi"}`)}},
		`channel_data`:                 {Kind: wire.KindChannelData, ChannelData: []wire.ChannelDatum{{Value: jsontext.Value(`"secret"`)}}},
	} {
		if got := Title(e); got != want {
			t.Errorf("title %q, want %q", got, want)
		}
	}
}
