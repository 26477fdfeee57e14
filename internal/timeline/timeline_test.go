package timeline_test

import (
	"fmt"
	"testing"

	"telapi/internal/timeline"
)

func TestLateReaderSeesTheStartAndASlowOneHoldsNobodyUp(t *testing.T) {
	h := timeline.NewHub()
	for n := range 3 {
		h.Tell("s", timeline.Bot, "", timeline.HTTP, fmt.Sprint(n), map[string]int{"n": n})
	}
	past, next, leave := h.Follow("s")
	if len(past) != 3 || past[0].Title != "0" || string(past[2].Data) != `{"n":2}` {
		t.Fatalf("a late reader sees %+v", past)
	}
	for n := range 1000 { // none of which is read
		h.Tell("s", timeline.Bot, "", timeline.HTTP, fmt.Sprint(n), nil)
	}
	h.Tell("another", timeline.Bot, "", timeline.HTTP, "another's", nil)
	if e := <-next; e.Title != "0" || e.SessionID != "s" {
		t.Errorf("the reader gets %+v", e)
	}
	leave()
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	h := timeline.NewHub()
	for n := range 2000 {
		h.Tell("long", timeline.Runtime, "", timeline.Timer, fmt.Sprint(n), nil)
	}
	past, _, leave := h.Follow("long")
	if len(past) > 500 || past[len(past)-1].Title != "1999" {
		t.Errorf("%d events are kept", len(past))
	}
	tellMany := func() {
		for n := range 500 {
			h.Tell(fmt.Sprint("session-", n), timeline.Runtime, "", timeline.Timer, "one", nil)
		}
	}
	tellMany()
	if past, _, leave := h.Follow("long"); len(past) == 0 {
		t.Error("a session is forgotten while somebody follows it")
	} else {
		leave()
	}
	leave()
	tellMany()
	if past, _, _ := h.Follow("long"); len(past) != 0 {
		t.Error("the oldest session is never forgotten")
	}
	if past, _, _ := h.Follow("session-499"); len(past) != 1 {
		t.Error("the newest session is forgotten")
	}
}
