package simulation

import (
	"sync"
	"time"
)

// mailbox is an unbounded queue with one reader.
type mailbox[T any] struct {
	mu    sync.Mutex
	items []T
	wake  chan struct{}
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{wake: make(chan struct{}, 1)} }

func (m *mailbox[T]) put(item T) {
	m.mu.Lock()
	m.items = append(m.items, item)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns the next item, if there is one.
func (m *mailbox[T]) take() (item T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.items) == 0 {
		return item, false
	}
	item, m.items = m.items[0], m.items[1:]
	return item, true
}

// wait returns the next item. It returns false at the given time, or when stop
// is closed.
func (m *mailbox[T]) wait(until time.Time, stop <-chan struct{}) (item T, ok bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		if item, ok := m.take(); ok {
			return item, true
		}
		select {
		case <-m.wake:
		case <-timer.C:
			return item, false
		case <-stop:
			return item, false
		}
	}
}
