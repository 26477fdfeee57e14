package callback

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	maxParked = 1 << 16 // remembered; of more, the youngest are left out
	askAtOnce = 512
	askFor    = time.Second
)

// ParkedItem is the place of a parked work item in its channel.
type ParkedItem struct {
	ChannelID string
	Number    int64
	Since     time.Time
}

// parked remembers what this instance has parked, the oldest first. Whatever
// lets it go, on any instance or in the runtime, need not tell: the store is asked
// when somebody wants to know what still waits.
type parked struct {
	store  Store
	asking sync.Mutex
	mu     sync.Mutex
	turns  []ParkedItem
}

func (p *parked) add(t ParkedItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.turns) < maxParked {
		p.turns = append(p.turns, t)
	}
}

// oldest is since when something waits, or zero. With the store away it is what
// was known last.
func (p *parked) oldest(ctx context.Context) time.Time {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	p.asking.Lock()
	defer p.asking.Unlock()
	for {
		first := p.drop(0)
		if len(first) == 0 {
			return time.Time{}
		}
		waiting, err := p.store.StillParked(ctx, first)
		if err != nil {
			return first[0].Since
		}
		if i := slices.Index(waiting, true); i >= 0 {
			p.drop(i)
			return first[i].Since
		}
		p.drop(len(first))
	}
}

// drop forgets the n oldest and returns those that are then the first.
func (p *parked) drop(n int) []ParkedItem {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns = p.turns[n:]
	return p.turns[:min(len(p.turns), askAtOnce)]
}
