package redisstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/usage"
	"telapi/test/poll"
)

var reportPromises = map[string]func(*testing.T, Options){
	"each report is delivered to one instance":         reportsAreShared,
	"reports that were left behind are taken up":       reportsAreTakenUp,
	"refused reports are put aside":                    refusedReportsArePutAside,
	"a store that lost the stream begins it once more": lostStreamIsBegunAnew,
}

// reports returns the stream as two instances see it, empty.
func reports(t *testing.T, opts Options) (a, b *Reports) {
	t.Helper()
	one, _ := connect(t, opts)
	two, _ := connect(t, opts)
	forget(t, one, kv.ReportsStream)
	forget(t, one, kv.RejectedReportsStream)
	a, b = NewReports(one), NewReports(two)
	a.redeliverAfter, b.redeliverAfter = time.Hour, time.Hour
	return a, b
}

func add(t *testing.T, r *Reports, n int) {
	t.Helper()
	var batch [][]byte
	for i := range n {
		batch = append(batch, fmt.Append(nil, i))
	}
	if err := r.Append(t.Context(), batch...); err != nil {
		t.Fatal(err)
	}
}

// next returns the first delivery there is.
func next(t *testing.T, r *Reports) (taken []usage.ReportEntry) {
	t.Helper()
	poll.Until(t, "a delivery", func() (ok bool) {
		var err error
		if taken, err = r.Read(t.Context(), 100, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		return len(taken) > 0
	})
	return taken
}

func waiting(t *testing.T, r *Reports) int64 {
	t.Helper()
	n, err := r.Len(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func reportsAreShared(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	const all = 2000
	add(t, a, all)
	var mu sync.Mutex
	seen := map[string]int{}
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			r := []*Reports{a, b}[worker%2]
			for rounds := 0; ; rounds++ {
				taken, err := r.Read(t.Context(), 64, 100*time.Millisecond)
				if err != nil {
					t.Error(err)
					return
				}
				if len(taken) == 0 && rounds > 0 { // the first may have made the group
					return
				}
				mu.Lock()
				for _, d := range taken {
					seen[string(d.Report)]++
				}
				mu.Unlock()
				if len(taken) > 0 {
					if err := r.Ack(t.Context(), taken); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for report, times := range seen {
		if times != 1 {
			t.Errorf("%s was delivered %d times", report, times)
		}
	}
	if len(seen) != all || waiting(t, a) != 0 {
		t.Errorf("%d of %d delivered, %d left", len(seen), all, waiting(t, a))
	}
}

func reportsAreTakenUp(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 3)
	dead := next(t, a)
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 {
		t.Errorf("%v, %v: another instance is at these", taken, err)
	}
	b.redeliverAfter = time.Millisecond
	if got := next(t, b); len(got) != 3 || got[0].ID != dead[0].ID || string(got[2].Report) != "2" {
		t.Errorf("taken up: %v, want %v", got, dead)
	}
	// An instance that died between the two halves of settling.
	raw(t, b.store, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Xdel().Key(kv.ReportsStream).Id(dead[0].ID).Build()).Error()
	})
	if got := next(t, b); len(got) != 2 || string(got[0].Report) != "1" {
		t.Errorf("after one is gone: %v", got)
	}
	if err := b.Ack(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 || waiting(t, b) != 0 {
		t.Errorf("after all are settled: %v, %v", taken, err)
	}
}

func refusedReportsArePutAside(t *testing.T, opts Options) {
	a, _ := reports(t, opts)
	if err := a.Append(t.Context(), make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	if err := a.Reject(t.Context(), next(t, a)[0], "because"); err != nil {
		t.Fatal(err)
	}
	raw(t, a.store, func(ctx context.Context, c rueidis.Client) error {
		aside, err := c.Do(ctx, c.B().Xrange().Key(kv.RejectedReportsStream).Start("-").End("+").Build()).AsXRange()
		if len(aside) != 1 || aside[0].FieldValues["reason"] != "because" || len(aside[0].FieldValues["report"]) != maxRejectedBytes {
			t.Errorf("aside: %d", len(aside))
		}
		return err
	})
	if waiting(t, a) != 0 {
		t.Error("it is still on the stream")
	}
}

func lostStreamIsBegunAnew(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 1)
	next(t, b)
	forget(t, a.store, kv.ReportsStream)
	add(t, a, 2)
	if got := next(t, b); len(got) != 2 {
		t.Errorf("%v, want both of the new stream", got)
	}
}
