// Package backlog owns what waits in this process for a store: it is bounded,
// written in the background, and tried again for as long as the store is away.
package backlog

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"telapi/internal/fault"
)

// LastWrite is how long the rest may take to be written when the service ends.
const LastWrite = 5 * time.Second

// Pauses are those between attempts at a store that is away.
func Pauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, 5*time.Second
	return pauses
}

// Write has a batch written, again and again while the store is away. Where the
// store refuses it, its values are tried one by one, so that a bad one holds up no
// other, and refused is told of those. The error is refused's, or the end of ctx.
func Write[T any](ctx context.Context, batch []T, write func(context.Context, []T) error, refused func(T, error) error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := write(ctx, batch)
		if err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(Pauses()), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case len(batch) == 1:
		return refused(batch[0], err)
	}
	for i := range batch {
		if err := Write(ctx, batch[i:i+1], write, refused); err != nil {
			return err
		}
	}
	return nil
}

// Queue holds values until they are written. All methods may be called from any
// goroutine, Run from one.
type Queue[T any] struct {
	room    int // for the weights of all
	batch   int // values that are written at once
	write   func(context.Context, []T) error
	refused func(T, error) error
	arrive  chan struct{}

	mu      sync.Mutex
	waiting []weighed[T]
	weight  int
}

type weighed[T any] struct {
	value  T
	weight int
}

// NewQueue returns an empty queue; write and refused are those of Write.
func NewQueue[T any](room, batch int, write func(context.Context, []T) error, refused func(T, error) error) *Queue[T] {
	return &Queue[T]{room: room, batch: batch, write: write, refused: refused, arrive: make(chan struct{}, 1)}
}

// Add takes a value if there is room for its weight, and returns at once.
func (q *Queue[T]) Add(value T, weight int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.weight+weight > q.room {
		return false
	}
	q.waiting = append(q.waiting, weighed[T]{value, weight})
	q.weight += weight
	select {
	case q.arrive <- struct{}{}:
	default:
	}
	return true
}

// Run writes until ctx ends, and what is left then for as long as LastWrite. It
// returns how many could not be written.
func (q *Queue[T]) Run(ctx context.Context) (left int) {
	for ctx.Err() == nil {
		select {
		case <-q.arrive:
			q.drain(ctx)
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), LastWrite)
	defer cancel()
	q.drain(last)
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// drain writes until the queue is empty or ctx ends. A batch leaves the queue
// when it is written or refused, not before.
func (q *Queue[T]) drain(ctx context.Context) {
	for ctx.Err() == nil {
		q.mu.Lock()
		batch := make([]T, min(len(q.waiting), q.batch))
		for i := range batch {
			batch[i] = q.waiting[i].value
		}
		q.mu.Unlock()
		if len(batch) == 0 || Write(ctx, batch, q.write, q.refused) != nil {
			return
		}
		q.mu.Lock()
		for _, written := range q.waiting[:len(batch)] {
			q.weight -= written.weight
		}
		q.waiting = slices.Delete(q.waiting, 0, len(batch))
		q.mu.Unlock()
	}
}
