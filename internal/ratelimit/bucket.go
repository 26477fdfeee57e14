package ratelimit

import (
	"sync"
	"time"
)

// leaseShare is the part of a limit that an instance may hold: a fiftieth, so
// that what an idle instance strands stays within 2 %.
const leaseShare = 50

// rule is what a bucket counts by. Version tells two saves of equal limits
// apart: in between, another instance may have changed the window in the store.
type rule struct {
	version *Limits // nil for quotas
	max     int64
	window  time.Duration
}

// bucket is one client's or team's share of the store's count on this instance.
type bucket struct {
	mu        sync.Mutex
	rule      rule
	ends      time.Time // of the window below; past: nothing is known
	permits   int64     // leased and not used yet
	remaining int64     // left in the store at the last lease
	size      int64     // of the next lease
	waiting   int64     // callers that wait for a lease
	lease     *lease    // nil: none under way
}

// lease is one request to the store. Only the lease that its bucket still names
// may be credited to it: a changed rule disowns the one under way.
type lease struct {
	done chan struct{} // closed when err is set
	err  error
}

// follow voids everything known under another rule.
func (b *bucket) follow(r rule) {
	if b.rule != r {
		b.rule, b.ends, b.lease = r, time.Time{}, nil
	}
}

// expire voids what belongs to a window that has ended.
func (b *bucket) expire(now time.Time) {
	if !now.Before(b.ends) {
		b.permits, b.remaining, b.size = 0, 0, 1
	}
}

// usedUp tells whether the store has nothing left in this window. It stays so
// until the window ends: permits are never given back.
func (b *bucket) usedUp(now time.Time) bool {
	return b.permits == 0 && b.remaining == 0 && now.Before(b.ends)
}

// share is how many permits this instance may hold at a time.
func (b *bucket) share() int64 { return max(1, b.rule.max/leaseShare) }

// want is how many permits to lease: it doubles from one, so that an idle client
// strands no more than it used, and covers those who wait, up to the share.
func (b *bucket) want() int64 { return min(max(b.size, b.waiting), b.share()) }

// credit notes a grant. The window is counted from when the lease was sent, so
// that it never ends later here than in the store.
func (b *bucket) credit(g Grant, sent time.Time) {
	b.permits, b.remaining = g.Permits, g.Remaining
	b.size = min(2*b.size, b.share())
	b.ends = sent.Add(g.Reset)
}
