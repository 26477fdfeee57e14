package httpapi

import (
	"testing"
	"testing/synctest"
	"time"
)

type eventAt int64

func (e eventAt) UnixMilli() int64 { return int64(e) }

func TestFeedBeatsWhenNothingHappensAndOrdersWhatComesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan FeedEvent)
		began := time.Now()
		if batch, more := gather(events); !more || len(batch) != 0 || time.Since(began) != 15*time.Second {
			t.Errorf("after %s of silence: %+v", time.Since(began), batch)
		}
		go func() {
			for _, at := range []int64{3, 1, 2} {
				events <- eventAt(at)
			}
			time.Sleep(time.Second)
			events <- eventAt(0)
			close(events)
		}()
		if batch, more := gather(events); !more || len(batch) != 3 || batch[0] != eventAt(1) || batch[2] != eventAt(3) {
			t.Errorf("what came together: %+v", batch)
		}
		if batch, more := gather(events); !more || len(batch) != 1 {
			t.Errorf("the last: %+v", batch)
		}
		if batch, more := gather(events); more {
			t.Errorf("after the end: %+v", batch)
		}
	})
}
