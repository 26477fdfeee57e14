package demo

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

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
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
