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
	"telapi/test/testkit"
)

var reportTests = map[string]func(*testing.T, Options){
	"each report is delivered to one instance": reportsAreShared,
	"unacknowledged reports are redelivered":   reportsAreRedelivered,
	"rejected reports are moved":               rejectedReportsAreMoved,
	"lost stream is created again":             lostStreamIsCreatedAgain,
}

// reports returns the empty stream for two instances.
func reports(t *testing.T, opts Options) (a, b *ReportStream) {
	t.Helper()
	one, _ := connect(t, opts)
	two, _ := connect(t, opts)
	deleteKey(t, one, kv.ReportsStream)
	deleteKey(t, one, kv.RejectedReportsStream)
	a, b = NewReportStream(one), NewReportStream(two)
	a.redeliverAfter, b.redeliverAfter = time.Hour, time.Hour
	return a, b
}

func add(t *testing.T, r *ReportStream, n int) {
	t.Helper()
	var batch [][]byte
	for i := range n {
		batch = append(batch, fmt.Append(nil, i))
	}
	if err := r.Append(t.Context(), batch...); err != nil {
		t.Fatal(err)
	}
}

// next waits for reports and returns them.
func next(t *testing.T, r *ReportStream) (taken []usage.ReportEntry) {
	t.Helper()
	testkit.Until(t, "a delivery", func() (ok bool) {
		var err error
		if taken, err = r.Read(t.Context(), 100, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		return len(taken) > 0
	})
	return taken
}

func streamLen(t *testing.T, r *ReportStream) int64 {
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
			r := []*ReportStream{a, b}[worker%2]
			for rounds := 0; ; rounds++ {
				taken, err := r.Read(t.Context(), 64, 100*time.Millisecond)
				if err != nil {
					t.Error(err)
					return
				}
				if len(taken) == 0 && rounds > 0 { // the first read may only create the group
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
			t.Errorf("%s was delivered %d times, want once", report, times)
		}
	}
	if len(seen) != all || streamLen(t, a) != 0 {
		t.Errorf("%d reports delivered, want %d; %d left, want 0", len(seen), all, streamLen(t, a))
	}
}

func reportsAreRedelivered(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 3)
	dead := next(t, a)
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 {
		t.Errorf("read reports of another instance: %v, %v, want none", taken, err)
	}
	b.redeliverAfter = time.Millisecond
	if got := next(t, b); len(got) != 3 || got[0].ID != dead[0].ID || string(got[2].Report) != "2" {
		t.Errorf("redelivered: %v, want %v", got, dead)
	}
	// An instance crashed between deleting and acknowledging a report.
	raw(t, b.store, func(ctx context.Context, c rueidis.Client) error {
		return c.Do(ctx, c.B().Xdel().Key(kv.ReportsStream).Id(dead[0].ID).Build()).Error()
	})
	if got := next(t, b); len(got) != 2 || string(got[0].Report) != "1" {
		t.Errorf("after one was deleted: %v, want the other two", got)
	}
	if err := b.Ack(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if taken, err := b.Read(t.Context(), 100, 100*time.Millisecond); err != nil || len(taken) != 0 || streamLen(t, b) != 0 {
		t.Errorf("after all are acknowledged: %v, %v, want none", taken, err)
	}
}

func rejectedReportsAreMoved(t *testing.T, opts Options) {
	a, _ := reports(t, opts)
	if err := a.Append(t.Context(), make([]byte, 10_000)); err != nil {
		t.Fatal(err)
	}
	if err := a.Reject(t.Context(), next(t, a)[0], "because"); err != nil {
		t.Fatal(err)
	}
	raw(t, a.store, func(ctx context.Context, c rueidis.Client) error {
		rejected, err := c.Do(ctx, c.B().Xrange().Key(kv.RejectedReportsStream).Start("-").End("+").Build()).AsXRange()
		if len(rejected) != 1 || rejected[0].FieldValues["reason"] != "because" || len(rejected[0].FieldValues["report"]) != maxRejectedBytes {
			t.Errorf("rejected reports: %v, want one, truncated, with its reason", rejected)
		}
		return err
	})
	if streamLen(t, a) != 0 {
		t.Error("the rejected report is still on the stream")
	}
}

func lostStreamIsCreatedAgain(t *testing.T, opts Options) {
	a, b := reports(t, opts)
	add(t, a, 1)
	next(t, b)
	deleteKey(t, a.store, kv.ReportsStream)
	add(t, a, 2)
	if got := next(t, b); len(got) != 2 {
		t.Errorf("%v, want both reports of the new stream", got)
	}
}
