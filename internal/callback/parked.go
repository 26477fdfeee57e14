package callback

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	maxParked      = 1 << 16 // further items are not tracked
	parkedBatch    = 512     // items per store query
	parkedDeadline = time.Second
)

// parkedItems tracks the items that this instance parked, oldest first. Other
// instances and runtimes route them without notice, so the store is queried on
// demand.
type parkedItems struct {
	store    Store
	querying sync.Mutex // held during a query; serializes drop
	mu       sync.Mutex // protects items
	items    []ParkedItem
}

func (p *parkedItems) add(item ParkedItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) < maxParked {
		p.items = append(p.items, item)
	}
}

// oldest returns when the oldest item that is still parked was parked, or zero.
// If the store is unavailable, it returns the last known value.
func (p *parkedItems) oldest(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, parkedDeadline)
	defer cancel()
	p.querying.Lock()
	defer p.querying.Unlock()
	for {
		batch := p.drop(0)
		if len(batch) == 0 {
			return time.Time{}
		}
		parked, err := p.store.StillParked(ctx, batch)
		if err != nil {
			return batch[0].Since
		}
		if i := slices.Index(parked, true); i >= 0 {
			p.drop(i)
			return batch[i].Since
		}
		p.drop(len(batch))
	}
}

// drop removes the n oldest items and returns the next batch.
func (p *parkedItems) drop(n int) []ParkedItem {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.items = p.items[n:]
	return p.items[:min(len(p.items), parkedBatch)]
}
