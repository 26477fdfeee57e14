package demo

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/testkit"
)

func TestHubReplaysPastEventsAndDeliversNewOnes(t *testing.T) {
	h := NewHub()
	for n := range 3 {
		h.Record(Event{SessionID: "s", Title: fmt.Sprint(n)}, map[string]int{"n": n})
	}
	events := make(chan Event, 9)
	past, cancel := h.Subscribe("s", events)
	_, cancelOther := h.Subscribe("s", make(chan Event)) // never read: Record must not block
	if len(past) != 3 || past[0].Title != "0" || string(past[2].Data) != `{"n":2}` {
		t.Fatalf("past events %+v, want 3", past)
	}
	h.Record(Event{SessionID: "s", Title: "new"}, nil)
	h.Record(Event{SessionID: "other", Title: "other session"}, nil)
	cancelOther()
	h.Record(Event{SessionID: "s", Title: "newer"}, nil)
	cancel()
	h.Record(Event{SessionID: "s", Title: "after cancel"}, nil)
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
		h.Record(Event{SessionID: "long", Title: fmt.Sprint(n)}, nil)
	}
	past, cancel := h.Subscribe("long", nil)
	if len(past) != maxSessionEvents || past[len(past)-1].Title != "1999" {
		t.Errorf("%d events kept, want the last %d", len(past), maxSessionEvents)
	}
	publishMany := func() {
		for n := range 500 {
			h.Record(Event{SessionID: fmt.Sprint("session-", n), Title: "one"}, nil)
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
	h.Record(Event{SessionID: "s", Title: "first"}, nil)
	h.Sent("s", "M1")
	h.Sent("s", "M2")
	h.Record(Event{SessionID: "s", Title: "second", After: []string{"entry:1-1"}}, nil)
	h.Record(Event{SessionID: "other", Title: "other session"}, nil)
	h.Record(Event{SessionID: "s", Title: "third"}, nil)
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
}

func TestEntryFollowsItsCause(t *testing.T) {
	for entry, want := range map[string]string{
		`{"kind":"frame","message":{"type":"chat","messageId":"M"}}`:              "entry:12-345 stored:M after frame:M",
		`{"kind":"session","event":"connected"}`:                                  "entry:12-345 after",
		`{"kind":"bot_message","callbackId":"C","workItemId":"W","text":"hello"}`: "entry:12-345 routed:C after request:W answer:W parked:W",
		`{"kind":"bot_message","callbackId":"C","text":"channel credential"}`:     "entry:12-345 routed:C after",
		`{"kind":"timeout","workItemId":"W","workItemKind":"bot"}`:                "entry:12-345 after request:W answer:W parked:W",
		`{"kind":"channel_ended","reason":"hangup"}`:                              "entry:12-345 ended after ending",
	} {
		e := entryEvent(delivery(t, "12-345", entry))
		if got := strings.TrimSpace(strings.Join(e.IDs, " ") + " after " + strings.Join(e.After, " ")); got != want || e.Source != "entries" || e.Seq != 12 {
			t.Errorf("%s: %s, event %d of %s; want %s, event 12 of entries", entry, got, e.Seq, e.Source, want)
		}
	}
}

func TestMessageFollowsItsSender(t *testing.T) {
	e := messageEvent(delivery(t, "7-1000", `{"kind":"frame","at":1000,"message":{"type":"chat","messageId":"M"}}`))
	if !slices.Equal(e.IDs, []string{"message:M"}) || !slices.Equal(e.After, []string{"sending:M"}) || e.Source != "messages" || e.Seq != 7 {
		t.Errorf("message event %+v, want message:M after sending:M", e)
	}
}

// Audio has no position: nothing follows it.
func TestAudioHasNoCause(t *testing.T) {
	d := delivery(t, "", `{"kind":"frame","message":{"type":"audio","messageId":"M"}}`)
	for _, e := range []Event{entryEvent(d), messageEvent(d)} {
		if e.Source != "" || e.Seq != 0 || e.IDs != nil || e.After != nil {
			t.Errorf("audio event %+v, want no source, ID and cause", e)
		}
	}
}

func TestReceiptFollowsEntriesUnlessParked(t *testing.T) {
	q := botRequest{ChannelID: "s", WorkItemID: "W"}
	for receipt, want := range map[string]string{
		`{"status":"accepted","callbackId":"C","commands":[{"type":"hangup","decision":"allowed"}]}`: "202 accepted, hangup allowed:  after answer:W routed:C",
		`{"status":"parked","callbackId":"C"}`:                                                       "202 parked: parked:W after answer:W",
		`{"error":{"code":"CALLBACK_CONSUMED"}}`:                                                     "202 CALLBACK_CONSUMED:  after answer:W",
	} {
		e := receiptEvent(q, response{http.StatusAccepted, http.Header{"X-Request-Id": {"R"}}, []byte(receipt)}, 1.5)
		testkit.Equal(t, fmt.Sprintf("receipt %s", receipt), e.Title+": "+strings.Join(e.IDs, " ")+" after "+strings.Join(e.After, " "), want)
		if e.HTTP.Status != http.StatusAccepted || e.HTTP.Headers["X-Request-Id"] != "R" || e.Ms != 1.5 {
			t.Errorf("receipt %s: exchange %+v in %g ms, want status 202, the request ID and 1.5 ms", receipt, e.HTTP, e.Ms)
		}
	}
}

func delivery(t *testing.T, position, entry string) calls.Delivery {
	t.Helper()
	d := calls.Delivery{Position: position, JSON: jsontext.Value(entry)}
	testkit.Must(t, json.Unmarshal(d.JSON, &d.Entry))
	return d
}

func TestFeedBatchesEventsAndReportsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		events := make(chan Event, 9)
		start := time.Now()
		if batch, open := gather(ctx, events); !open || len(batch) != 0 || time.Since(start) != 15*time.Second {
			t.Errorf("batch %+v, open %v after %s; want an empty batch after 15s", batch, open, time.Since(start))
		}
		for _, at := range []int64{3, 1, 2} {
			events <- Event{At: at}
		}
		if batch, open := gather(ctx, events); !open || len(batch) != 3 || batch[0].At != 3 || batch[2].At != 2 {
			t.Errorf("first batch %+v, open %v; want 3 events as they arrived", batch, open)
		}
		events <- Event{}
		stop()
		if batch, open := gather(ctx, events); !open || len(batch) != 1 {
			t.Errorf("last batch %+v, open %v; want 1 event", batch, open)
		}
		if batch, open := gather(ctx, events); open {
			t.Errorf("after the end: batch %+v, want a closed feed", batch)
		}
	})
}

func TestBatchIsBounded(t *testing.T) {
	events := make(chan Event, 2*feedBuffer)
	for n := range cap(events) {
		events <- Event{At: int64(n)}
	}
	if batch, open := gather(t.Context(), events); !open || len(batch) != feedBuffer {
		t.Errorf("batch of %d events, open %v; want %d", len(batch), open, feedBuffer)
	}
}

func TestFeedIsSentInChunks(t *testing.T) {
	for name, c := range map[string]struct {
		events, dataBytes, chunks int
	}{
		"no events":  {0, 0, 1}, // sends the header of the response
		"few events": {10, 100, 1},
		"many":       {100, 8 << 10, 26},
	} {
		events := make([]Event, c.events)
		for n := range events {
			events[n].Data = jsontext.Value(`"` + strings.Repeat("x", c.dataBytes) + `"`)
		}
		chunks, lines := 0, 0
		if !send(slices.Values(events), func(chunk []byte) bool {
			chunks++
			lines += bytes.Count(chunk, []byte("\n"))
			if len(chunk) > feedChunk+maxData+1024 {
				t.Errorf("%s: chunk of %d bytes", name, len(chunk))
			}
			return true
		}) || lines != c.events || chunks != c.chunks {
			t.Errorf("%s: %d lines in %d chunks, want %d in %d", name, lines, chunks, c.events, c.chunks)
		}
		if chunks = 0; send(slices.Values(events), func([]byte) bool { chunks++; return false }) || chunks != 1 {
			t.Errorf("%s: %d chunks to a client that disconnects, want 1", name, chunks)
		}
	}
}

// stream is a channel with a number of entries.
func stream(t *testing.T, entries int) *pager {
	return &pager{
		feed: &Feed{},
		list: func(_ context.Context, _, from string, count int) (page []calls.Delivery, err error) {
			if count > feedPage+1 {
				t.Errorf("%d entries are read at once, want at most %d", count, feedPage+1)
			}
			for n := range entries {
				if position := fmt.Sprintf("%03d", n); position >= from && len(page) < count {
					page = append(page, calls.Delivery{Position: position, Entry: wire.Entry{At: int64(n)}})
				}
			}
			return page, nil
		},
		convert: func(d calls.Delivery) Event { return Event{At: d.Entry.At} },
	}
}

func TestPastEventsAreReadInPages(t *testing.T) {
	for _, entries := range []int{0, 1, feedPage, feedPage + 1, feedPage + 2, 100} {
		s := stream(t, entries)
		testkit.Must(t, s.fill(t.Context()))
		past := slices.Collect(s.events(t.Context()))
		if len(past) != entries || entries > 0 && s.position != fmt.Sprintf("%03d", entries-1) {
			t.Errorf("%d events up to %s, want %d", len(past), s.position, entries)
		}
		for n, e := range past {
			testkit.Equal(t, "entry", e.At, int64(n))
		}
	}
}

func TestPastEndsAfterFailedRead(t *testing.T) {
	s := stream(t, 2)
	testkit.Must(t, s.fill(t.Context()))
	s.list = func(context.Context, string, string, int) ([]calls.Delivery, error) {
		return nil, context.DeadlineExceeded
	}
	if got := slices.Collect(s.events(t.Context())); len(got) != 2 || s.err == nil {
		t.Errorf("events %+v, error %v; want two events and the error", got, s.err)
	}
}

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
		h.Record(Event{SessionID: "s", Title: text}, strings.Repeat("x", maxData-2))
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
