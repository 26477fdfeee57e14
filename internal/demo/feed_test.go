package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

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

// A client that reconnects skips the lines that it knows.
func TestFeedRepeatsSameLines(t *testing.T) {
	headers := map[string]string{}
	for n := range 20 {
		headers[fmt.Sprint("Header-", n)] = "value"
	}
	encode := func() (line string) {
		send(slices.Values([]Event{{HTTP: &Exchange{Headers: headers}}}), func(chunk []byte) bool { line = string(chunk); return true })
		return line
	}
	first := encode()
	for range 20 {
		if again := encode(); again != first {
			t.Fatalf("the same event is sent as %s and as %s", first, again)
		}
	}
}

// stream is a channel with an entry at each of the given times.
func stream(t *testing.T, times ...int64) *source {
	return &source{
		reading: new(sync.Mutex),
		list: func(_ context.Context, _, from string, count int) (page []calls.Delivery, err error) {
			if count > feedPage+1 {
				t.Errorf("%d entries are read at once, want at most %d", count, feedPage+1)
			}
			for _, at := range times {
				if position := fmt.Sprintf("%03d", at); position >= from && len(page) < count {
					page = append(page, calls.Delivery{Position: position, Entry: wire.Entry{At: at}})
				}
			}
			return page, nil
		},
		convert: func(d calls.Delivery) Event { return Event{At: d.Entry.At} },
	}
}

// Feeds read their pages one after the other, so that many of them leave the CPUs to
// other requests.
func TestPagesOfFeedsAreReadOneAtATime(t *testing.T) {
	var shared sync.Mutex
	var active atomic.Int32
	var feeds sync.WaitGroup
	for range 8 {
		feeds.Go(func() {
			s := &source{reading: &shared, list: func(context.Context, string, string, int) ([]calls.Delivery, error) {
				if n := active.Add(1); n > 1 {
					t.Errorf("%d pages are read at the same time, want 1", n)
				}
				runtime.Gosched()
				active.Add(-1)
				return nil, nil
			}}
			for range 100 {
				_ = s.fill(t.Context())
			}
		})
	}
	feeds.Wait()
}

func TestPastEventsAreReadInPages(t *testing.T) {
	var odd, even, want []int64
	for n := range int64(100) {
		want = append(want, n)
		if n%2 == 1 {
			odd = append(odd, n)
		} else {
			even = append(even, n)
		}
	}
	a, b, recorded := stream(t, even...), stream(t, odd...), &source{events: []Event{{At: 100}}}
	if err := errors.Join(a.fill(t.Context()), b.fill(t.Context())); err != nil {
		t.Fatal(err)
	}
	var got []int64
	for e := range mergeByTime(t.Context(), a, b, stream(t), recorded) {
		got = append(got, e.At)
	}
	if want = append(want, 100); !slices.Equal(got, want) || a.position != "098" || b.position != "099" {
		t.Errorf("events %v up to %s and %s, want 0 to 100 up to 098 and 099", got, a.position, b.position)
	}
}

func TestPastEndsAfterFailedRead(t *testing.T) {
	s := stream(t, 1, 2)
	if err := s.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.list = func(context.Context, string, string, int) ([]calls.Delivery, error) {
		return nil, context.DeadlineExceeded
	}
	if got := slices.Collect(mergeByTime(t.Context(), s)); len(got) != 2 || s.err == nil {
		t.Errorf("events %+v, error %v; want two events and the error", got, s.err)
	}
}
