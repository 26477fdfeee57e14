package background

import (
	"context"
	"slices"
	"sync"
	"time"

	"telapi/internal/fault"
)

// ShutdownTimeout limits the last write when the process ends.
const ShutdownTimeout = 5 * time.Second

// Write writes a batch and retries while the store is unavailable. If the store
// rejects the batch, Write writes the values one by one and calls rejected for
// each value that fails. It returns the error of rejected or of ctx.
func Write[T any](ctx context.Context, batch []T, write func(context.Context, []T) error, rejected func(T, error) error) error {
	delays := StoreBackoff()
	err := write(ctx, batch)
	for fault.Is(err, fault.ServiceUnavailable) && Sleep(ctx, delays.Next()) == nil {
		err = write(ctx, batch)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(batch) == 1:
		return rejected(batch[0], err)
	}
	for i := range batch {
		if err := Write(ctx, batch[i:i+1], write, rejected); err != nil {
			return err
		}
	}
	return nil
}

// Queue is a bounded queue of values to write, so that callers do not wait for the store.
// Any goroutine may call its methods, but Run only runs once at a time.
type Queue[T any] struct {
	capacity  int // maximum total weight
	weigh     func(T) int
	batchSize int
	write     func(context.Context, []T) error
	rejected  func(T, error) error
	added     chan struct{}

	mu     sync.Mutex
	queued []T
	weight int
}

// NewQueue returns an empty queue. Run passes write and rejected to Write.
func NewQueue[T any](
	capacity int, weigh func(T) int, batchSize int, write func(context.Context, []T) error, rejected func(T, error) error,
) *Queue[T] {
	return &Queue[T]{capacity: capacity, weigh: weigh, batchSize: batchSize, write: write, rejected: rejected, added: make(chan struct{}, 1)}
}

// Add queues a value without blocking. It returns false if the queue is full.
func (q *Queue[T]) Add(value T) bool {
	weight := q.weigh(value)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.weight+weight > q.capacity {
		return false
	}
	q.queued = append(q.queued, value)
	q.weight += weight
	select {
	case q.added <- struct{}{}:
	default:
	}
	return true
}

// Run writes queued values until ctx ends, then the rest within
// ShutdownTimeout. It returns the number of values that were not written.
func (q *Queue[T]) Run(ctx context.Context) (lost int) {
	for ctx.Err() == nil {
		select {
		case <-q.added:
			q.drain(ctx)
		case <-ctx.Done():
		}
	}
	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownTimeout)
	defer cancel()
	q.drain(shutdownCtx)
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued)
}

// drain writes until the queue is empty or ctx ends. A batch stays in the queue
// until it is written or rejected.
func (q *Queue[T]) drain(ctx context.Context) {
	for ctx.Err() == nil {
		q.mu.Lock()
		batch := slices.Clone(q.queued[:min(len(q.queued), q.batchSize)])
		q.mu.Unlock()
		if len(batch) == 0 || Write(ctx, batch, q.write, q.rejected) != nil {
			return
		}
		q.mu.Lock()
		for _, written := range batch {
			q.weight -= q.weigh(written)
		}
		q.queued = slices.Delete(q.queued, 0, len(batch))
		q.mu.Unlock()
	}
}

// LastSeen collects the last time that each ID was seen, until Flush writes
// them. The zero value is ready to use from any goroutine.
type LastSeen struct {
	mu    sync.Mutex
	times map[string]time.Time
}

// Record records that id was seen. It ignores a time that is older than the
// recorded one.
func (l *LastSeen) Record(id string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times == nil {
		l.times = map[string]time.Time{}
	}
	if at.After(l.times[id]) {
		l.times[id] = at
	}
}

// Flush writes all recorded times. If write fails, the next Flush writes them
// again.
func (l *LastSeen) Flush(ctx context.Context, write func(context.Context, map[string]time.Time) error) error {
	l.mu.Lock()
	batch := l.times
	l.times = nil
	l.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := write(ctx, batch)
	if err != nil {
		for id, at := range batch {
			l.Record(id, at)
		}
	}
	return err
}
