package callback

import (
	"context"
	"sync"
	"time"

	"telapi/internal/ratelimit"
)

const (
	parkedBytes    = 128 << 20   // that this instance may have parked
	parkedOverhead = 1 << 10     // of an item, in the store and in parkedItems
	parkedBatch    = 512         // items per store query
	queryTimeout   = time.Second // of queries in the background
	parkedInterval = time.Second // between queries for teams that have used up their share
)

// parkedItems tracks the items that this instance parked, oldest first, and bounds
// their size. Other instances and runtimes can route them, so it queries the store.
type parkedItems struct {
	store  Store
	now    func() time.Time
	budget *ratelimit.Budget

	querying sync.Mutex // only one query at a time
	queried  time.Time  // the start of the last query

	mu    sync.Mutex
	items []trackedItem
}

type trackedItem struct {
	ParkedItem
	teamID string
	size   int64
}

// reserve takes the size of a callback that may be parked from the budget. If the team has used
// up its share, reserve forgets items that are no longer parked and tries again, unless another
// call is doing so or did it a moment ago. The caller then calls track, or returns the size to
// the budget.
func (p *parkedItems) reserve(ctx context.Context, teamID string, size int64) error {
	err := p.budget.Take(teamID, size)
	if err == nil || !p.querying.TryLock() {
		return err
	}
	defer p.querying.Unlock()
	if p.now().Sub(p.queried) < parkedInterval {
		return err
	}
	p.release(ctx)
	return p.budget.Take(teamID, size)
}

// track adds a parked item.
func (p *parkedItems) track(item ParkedItem, teamID string, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = append(p.items, trackedItem{item, teamID, size})
}

// oldestSeconds returns the age of the oldest parked item, or 0 if none is parked. While the
// store is unavailable, items count as parked if they were when it was last queried.
func (p *parkedItems) oldestSeconds() float64 {
	p.querying.Lock()
	defer p.querying.Unlock()
	p.release(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) == 0 {
		return 0
	}
	return p.now().Sub(p.items[0].Since).Seconds()
}

// release forgets the items that are no longer parked and returns their sizes to the
// budget. The caller holds querying.
func (p *parkedItems) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	p.queried = p.now()
	p.mu.Lock()
	items := p.items
	p.items = nil // during the queries, track appends to a new list
	p.mu.Unlock()
	var kept []trackedItem
	for len(items) > 0 {
		batch := items[:min(len(items), parkedBatch)]
		list := make([]ParkedItem, len(batch))
		for i := range batch {
			list[i] = batch[i].ParkedItem
		}
		parked, err := p.store.StillParked(ctx, list)
		if err != nil {
			kept = append(kept, items...)
			break
		}
		for i, item := range batch {
			if parked[i] {
				kept = append(kept, item)
			} else {
				p.budget.Return(item.teamID, item.size)
			}
		}
		items = items[len(batch):]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = append(kept, p.items...)
}
