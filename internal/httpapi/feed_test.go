package httpapi

import (
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/timeline"
)

func TestFeedBeatsWhenNothingHappensAndOrdersWhatComesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan timeline.Event)
		began := time.Now()
		if batch, more := gather(events); !more || len(batch) != 1 || batch[0].Kind != timeline.Heartbeat || time.Since(began) != 15*time.Second {
			t.Errorf("after %s of silence: %+v", time.Since(began), batch)
		}
		go func() {
			for _, at := range []int64{3, 1, 2} {
				events <- timeline.Event{At: at}
			}
			time.Sleep(time.Second)
			events <- timeline.Event{At: 0}
			close(events)
		}()
		if batch, more := gather(events); !more || len(batch) != 3 || batch[0].At != 1 || batch[2].At != 3 {
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
