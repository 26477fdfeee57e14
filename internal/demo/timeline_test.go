package demo

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

func TestHubReplaysPastEventsAndDeliversNewOnes(t *testing.T) {
	h := NewHub()
	for n := range 3 {
		h.Publish("s", LaneBot, "", EventHTTP, fmt.Sprint(n), map[string]int{"n": n})
	}
	events := make(chan Event, 9)
	past, cancel := h.Subscribe("s", events)
	_, cancelOther := h.Subscribe("s", make(chan Event)) // never read: Publish must not block
	if len(past) != 3 || past[0].Title != "0" || string(past[2].Data) != `{"n":2}` {
		t.Fatalf("past events %+v, want 3", past)
	}
	h.Publish("s", LaneBot, "", EventHTTP, "new", nil)
	h.Publish("other", LaneBot, "", EventHTTP, "other session", nil)
	cancelOther()
	h.Publish("s", LaneBot, "", EventHTTP, "newer", nil)
	cancel()
	h.Publish("s", LaneBot, "", EventHTTP, "after cancel", nil)
	close(events)
	var delivered []Event
	for e := range events {
		delivered = append(delivered, e)
	}
	if len(delivered) != 2 || delivered[0].Title != "new" || delivered[1].Title != "newer" || delivered[0].SessionID != "s" {
		t.Errorf("delivered events %+v, want new and newer", delivered)
	}
}

func TestHubMemoryIsBounded(t *testing.T) {
	h := NewHub()
	for n := range 2000 {
		h.Publish("long", LaneRuntime, "", EventTimer, fmt.Sprint(n), nil)
	}
	past, cancel := h.Subscribe("long", nil)
	if len(past) != maxSessionEvents || past[len(past)-1].Title != "1999" {
		t.Errorf("%d events kept, want the last %d", len(past), maxSessionEvents)
	}
	publishMany := func() {
		for n := range 500 {
			h.Publish(fmt.Sprint("session-", n), LaneRuntime, "", EventTimer, "one", nil)
		}
	}
	recorded := func(session string) int {
		past, cancel := h.Subscribe(session, nil)
		cancel()
		return len(past)
	}
	publishMany()
	if recorded("long") == 0 {
		t.Error("session with a subscriber was dropped")
	}
	cancel()
	publishMany()
	if recorded("long") != 0 {
		t.Error("oldest session was not dropped")
	}
	if recorded("session-499") != 1 {
		t.Error("newest session was dropped")
	}
}

// A client decides how large events are.
func TestLargeEventsAreShortened(t *testing.T) {
	text := strings.Repeat("ü", 1<<19)
	raw := jsontext.Value(`{"text":"` + text + `"}`)
	e := entryEvent(wire.Entry{Kind: wire.KindBotMessage, BotMessage: wire.BotMessage{Text: text}}, raw)
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
