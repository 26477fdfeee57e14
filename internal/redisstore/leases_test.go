package redisstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/internal/kv"
	"telapi/test/speechtest"
	"telapi/test/testkit"
)

var leaseTests = map[string]func(*testing.T, Options){
	"speech.Leases":                         leasesConform,
	"one holder at a time across instances": leasesExclude,
	"lease of a crashed holder expires":     crashedLeaseExpires,
	"lost lease ends its context":           lostLeaseEnds,
}

func leasesConform(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	speechtest.TestLeases(t, NewLeases(a), NewLeases(b), uuid.NewString())
}

func leasesExclude(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	name := uuid.NewString()
	var inside, most, waits atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			release, waited, err := NewLeases([]*Store{a, b}[i%2]).Acquire(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if waited {
				waits.Add(1)
			}
			most.Store(max(most.Load(), inside.Add(1)))
			_ = a.Ping(t.Context()) // a round trip, so that a second holder would overlap
			inside.Add(-1)
		})
	}
	wg.Wait()
	if most.Load() != 1 || waits.Load() == 0 {
		t.Errorf("%d concurrent holders, %d waited; want 1 holder while others wait", most.Load(), waits.Load())
	}
	if _, waited, err := NewLeases(a).Acquire(t.Context(), name); err != nil || waited {
		t.Errorf("acquire a released lease: waited %t, %v, want false", waited, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := NewLeases(b).Acquire(short, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire with a short deadline: %v, want DeadlineExceeded", err)
	}
}

// The lease of a holder that loses its connection expires.
func crashedLeaseExpires(t *testing.T, opts Options) {
	opts.Logger = (&testkit.Buffer{}).Logger()
	dead := Open(opts)
	if err := dead.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive, _ := connect(t, opts)
	name := uuid.NewString()
	lease, release, held, err := Leases{dead, time.Second}.Try(t.Context(), name)
	if err != nil || !held {
		t.Fatalf("try a free lease: held %t, %v, want true", held, err)
	}
	dead.Close()
	ctx := t.Context()
	end, _, err := NewLeases(alive).Acquire(ctx, name)
	if err != nil {
		t.Fatalf("acquire the lease of a crashed holder: %v", err)
	}
	if lease.Err() == nil {
		t.Error("the former holder's context has not ended")
	}
	release() // too late: another holder has the lease
	if _, _, held, err := NewLeases(alive).Try(ctx, name); err != nil || held {
		t.Errorf("the late release ended the lease of its successor: %v", err)
	}
	end()
	_, release, held, err = NewLeases(alive).Try(ctx, name)
	if err != nil || !held {
		t.Fatalf("the lease was not released: %v", err)
	}
	release()
}

func lostLeaseEnds(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	name := uuid.NewString()
	lease, release, held, err := NewLeases(a).Try(t.Context(), name)
	if err != nil || !held {
		t.Fatalf("try a free lease: held %t, %v, want true", held, err)
	}
	if _, _, held, err := NewLeases(b).Try(t.Context(), name); err != nil || held {
		t.Errorf("a second instance acquired the lease: %v", err)
	}
	deleteKey(t, b, kv.LeasePrefix+name)
	second, endSecond, held, err := NewLeases(b).Try(t.Context(), name)
	if err != nil || !held {
		t.Fatalf("try a free lease: held %t, %v, want true", held, err)
	}
	testkit.Until(t, "the context of the first holder ends", func() bool { return lease.Err() != nil })
	release()
	if second.Err() != nil {
		t.Error("the late release ended the second lease")
	}
	endSecond()
	if second.Err() == nil {
		t.Error("the context of a released lease has not ended")
	}
}
