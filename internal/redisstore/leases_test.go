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
	"telapi/test/poll"
	"telapi/test/speechtest"
)

var leasePromises = map[string]func(*testing.T, Options){
	"speech.Leases": leasesConform,
	"one holder at a time, over all instances": leasesExclude,
	"a dead holder's lease passes on":          leasesPassOn,
	"a turn ends before another's begins":      turnsEnd,
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
			time.Sleep(time.Millisecond)
			inside.Add(-1)
		})
	}
	wg.Wait()
	if most.Load() != 1 || waits.Load() == 0 {
		t.Errorf("%d at a time, %d waited", most.Load(), waits.Load())
	}
	if _, waited, err := NewLeases(a).Acquire(t.Context(), name); err != nil || waited {
		t.Errorf("released lease: waited %v, %v", waited, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := NewLeases(b).Acquire(short, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire with a short deadline: %v", err)
	}
}

// A holder that dies takes its connection along: nothing is released.
func leasesPassOn(t *testing.T, opts Options) {
	opts.Logger = (&logBuffer{}).logger()
	dead := Open(opts)
	if err := dead.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	alive, _ := connect(t, opts)
	name := uuid.NewString()
	turn, release, held, err := NewLeases(dead).Try(t.Context(), name)
	if err != nil || !held {
		t.Fatal(held, err)
	}
	dead.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 4*leaseTime)
	defer cancel()
	end, waited, err := NewLeases(alive).Acquire(ctx, name)
	if err != nil || !waited {
		t.Fatalf("waited %v, %v", waited, err)
	}
	if turn.Err() == nil {
		t.Error("who could not renew its lease goes on beside the next")
	}
	release() // too late: it is another's by now
	if held, err := NewLeases(alive).take(ctx, name, "other holder"); err != nil || held {
		t.Errorf("the late release ended another's lease: %v", err)
	}
	end()
	if held, err := NewLeases(alive).take(ctx, name, "other holder"); err != nil || !held {
		t.Errorf("the lease was not released: %v", err)
	}
}

func turnsEnd(t *testing.T, opts Options) {
	a, _ := connect(t, opts)
	b, _ := connect(t, opts)
	name := uuid.NewString()
	turn, release, held, err := NewLeases(a).Try(t.Context(), name)
	if err != nil || !held {
		t.Fatal(held, err)
	}
	if _, _, held, err := NewLeases(b).Try(t.Context(), name); err != nil || held {
		t.Errorf("two at a time: %v", err)
	}
	forget(t, b, kv.LeasePrefix+name)
	second, endSecond, held, err := NewLeases(b).Try(t.Context(), name)
	if err != nil || !held {
		t.Fatal(held, err)
	}
	poll.Until(t, "the first holder learns that it lost the lease", func() bool { return turn.Err() != nil })
	release()
	if second.Err() != nil {
		t.Error("the late release ended the second's turn")
	}
	endSecond()
	if second.Err() == nil {
		t.Error("a released turn goes on")
	}
}
