package ratelimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
)

// retryAfter is the delay after which a rejected client should retry.
const retryAfter = 2 * time.Second

// Budget is an amount that the requests of an instance share, such as memory or
// connections. A holder, usually a team, may have a part of it, its share, so that it
// cannot take what the others need. It is safe for concurrent use.
type Budget struct {
	name, unit   string
	total, share int64
	rejected     *prometheus.CounterVec

	mu       sync.Mutex
	used     int64
	holders  map[string]int64 // without those that have nothing
	returned chan struct{}    // closed by Return; nil: no caller of Wait needs it
}

// NewBudget returns an unused budget, of which a holder may have the given percentage, but at
// least 1. The name is for programs and the unit for people, such as sockets and
// "WebSockets".
func NewBudget(registry prometheus.Registerer, name, unit string, total int64, percent int) *Budget {
	b := &Budget{name: name, unit: unit, total: total, share: max(1, total*int64(percent)/100), holders: map[string]int64{}}
	b.rejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_budget_rejections_total", Help: "Rejections because a team uses its share of a budget (share), or all of it is in use (total)."},
		[]string{"budget", "limit"})
	if existing, ok := errors.AsType[prometheus.AlreadyRegisteredError](registry.Register(b.rejected)); ok { // by another budget
		b.rejected, _ = existing.ExistingCollector.(*prometheus.CounterVec)
	}
	for _, limit := range []string{"share", "total"} {
		b.rejected.WithLabelValues(name, limit) // start at 0, so that alerts see the first increase
	}
	return b
}

// Share returns how much one holder may have.
func (b *Budget) Share() int64 { return b.share }

// Take gives n to a holder. It fails with 503 if the budget has less, and with 429 if
// the holder would have more than its share. The holder "" has no share: it may take
// everything. The caller calls Return with the same arguments.
func (b *Budget) Take(holder string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.take(holder, n); err != nil {
		return b.reject(err)
	}
	return nil
}

// Check returns the error that Take would return. It takes nothing.
func (b *Budget) Check(holder string, n int64) error {
	err := b.Take(holder, n)
	if err == nil {
		b.Return(holder, n)
	}
	return err
}

// Wait is Take, but waits until the holder can have n or ctx ends.
func (b *Budget) Wait(ctx context.Context, holder string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		err := b.take(holder, n)
		if err == nil {
			return nil
		}
		if b.returned == nil {
			b.returned = make(chan struct{})
		}
		returned := b.returned
		b.mu.Unlock()
		select {
		case <-returned:
		case <-ctx.Done():
		}
		b.mu.Lock()
		if ctx.Err() != nil {
			return b.reject(err).WithCause(ctx.Err())
		}
	}
}

// take is Take. The caller holds mu and counts the error.
func (b *Budget) take(holder string, n int64) *fault.Error {
	switch {
	case b.used+n > b.total:
		return fault.New(fault.ServiceUnavailable, "All %d %s of this instance are in use. Retry later.", b.total, b.unit).
			WithDetails(exceeded{b.name, b.total})
	case holder != "" && b.holders[holder]+n > b.share:
		return fault.New(fault.RateLimitExceeded, "Your share of this instance's %s, %d, is in use. Retry when some of your requests have ended.", b.unit, b.share).
			WithDetails(exceeded{b.name, b.share})
	}
	b.used += n
	if holder != "" {
		b.holders[holder] += n
	}
	return nil
}

// exceeded is the details of the errors of Take.
type exceeded struct {
	Limit string `json:"limit"` // name of the budget
	Max   int64  `json:"max"`
}

func (b *Budget) reject(err *fault.Error) *fault.Error {
	limit := "total"
	if err.Code == fault.RateLimitExceeded {
		limit = "share"
	}
	b.rejected.WithLabelValues(b.name, limit).Inc()
	return err.WithRetryAfter(retryAfter)
}

// Return takes n back from a holder.
func (b *Budget) Return(holder string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if holder != "" {
		if b.holders[holder] -= n; b.holders[holder] == 0 {
			delete(b.holders, holder)
		}
	}
	if b.returned != nil {
		close(b.returned)
		b.returned = nil
	}
}

// Used returns how much of the budget is in use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
