package demo

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFeedBatchesEventsAndReportsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		events := make(chan Event)
		start := time.Now()
		if batch, open := gather(ctx, events); !open || len(batch) != 0 || time.Since(start) != 15*time.Second {
			t.Errorf("batch %+v, open %v after %s; want an empty batch after 15s", batch, open, time.Since(start))
		}
		go func() {
			for _, at := range []int64{3, 1, 2} {
				events <- Event{At: at}
			}
			time.Sleep(time.Second)
			events <- Event{At: 0}
			stop()
		}()
		if batch, open := gather(ctx, events); !open || len(batch) != 3 {
			t.Errorf("first batch %+v, open %v; want 3 events", batch, open)
		}
		if batch, open := gather(ctx, events); !open || len(batch) != 1 {
			t.Errorf("last batch %+v, open %v; want 1 event", batch, open)
		}
		if batch, open := gather(ctx, events); open {
			t.Errorf("after the end: batch %+v, want a closed feed", batch)
		}
	})
}

func TestFeedSortsBatchByTime(t *testing.T) {
	want := `{"at":1,"lane":"bot","kind":"","title":"","sessionId":""}
{"at":2,"lane":"","kind":"","title":"","sessionId":""}
`
	if got := string(lines([]Event{{At: 2}, {At: 1, Lane: LaneBot}})); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
