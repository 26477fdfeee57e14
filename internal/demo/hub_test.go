package demo

import (
	"fmt"
	"slices"
	"testing"
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

// Seq orders the events of one hub. An event after a message refers to that message.
func TestHubOrdersEvents(t *testing.T) {
	h := NewHub()
	h.Publish("s", LaneBot, "", EventHTTP, "first", nil)
	h.Sent("s", "M1")
	h.Sent("s", "M2")
	h.Record(Event{SessionID: "s", Title: "second", After: []string{"entry:1-1"}}, nil)
	h.Publish("other", LaneBot, "", EventHTTP, "other session", nil)
	h.Publish("s", LaneBot, "", EventHTTP, "third", nil)
	past, cancel := h.Subscribe("s", nil)
	cancel()
	if past[0].Seq >= past[1].Seq || past[1].Seq >= past[2].Seq || past[0].Source != past[2].Source {
		t.Errorf("events %+v, want ascending numbers and one source", past)
	}
	if want := []string{"entry:1-1", "message:M2"}; !slices.Equal(past[1].After, want) || past[2].After != nil {
		t.Errorf("the second event follows %v and the third %v, want %v and nothing", past[1].After, past[2].After, want)
	}
	if again := NewHub(); again.source == h.source {
		t.Errorf("two hubs have the source %s", h.source)
	}
	var none *Hub
	none.Sent("s", "M1") // must not panic
	none.Record(Event{SessionID: "s"}, nil)
}
