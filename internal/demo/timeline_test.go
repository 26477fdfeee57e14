package demo

import (
	"fmt"
	"testing"
)

func discard(Event) {}

func TestHubReplaysPastEventsAndDeliversNewOnes(t *testing.T) {
	h := NewHub()
	for n := range 3 {
		h.Publish("s", LaneBot, "", EventHTTP, fmt.Sprint(n), map[string]int{"n": n})
	}
	var delivered []Event
	past, cancel := h.Subscribe("s", func(e Event) { delivered = append(delivered, e) })
	_, cancelOther := h.Subscribe("s", discard)
	if len(past) != 3 || past[0].Title != "0" || string(past[2].Data) != `{"n":2}` {
		t.Fatalf("past events: %+v", past)
	}
	h.Publish("s", LaneBot, "", EventHTTP, "new", nil)
	h.Publish("other", LaneBot, "", EventHTTP, "other session", nil)
	cancelOther()
	h.Publish("s", LaneBot, "", EventHTTP, "newer", nil)
	cancel()
	h.Publish("s", LaneBot, "", EventHTTP, "after cancel", nil)
	if len(delivered) != 2 || delivered[0].Title != "new" || delivered[1].Title != "newer" || delivered[0].SessionID != "s" {
		t.Errorf("delivered events: %+v", delivered)
	}
}

func TestHubMemoryIsBounded(t *testing.T) {
	h := NewHub()
	for n := range 2000 {
		h.Publish("long", LaneRuntime, "", EventTimer, fmt.Sprint(n), nil)
	}
	past, cancel := h.Subscribe("long", discard)
	if len(past) != maxSessionEvents || past[len(past)-1].Title != "1999" {
		t.Errorf("%d events kept", len(past))
	}
	publishMany := func() {
		for n := range 500 {
			h.Publish(fmt.Sprint("session-", n), LaneRuntime, "", EventTimer, "one", nil)
		}
	}
	recorded := func(session string) int {
		past, cancel := h.Subscribe(session, discard)
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
