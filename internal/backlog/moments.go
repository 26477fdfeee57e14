package backlog

import (
	"context"
	"sync"
	"time"
)

// LastSeen gathers when things were last seen, so that nobody who sees one waits
// for the database. The zero value is ready to use, from any goroutine.
type LastSeen struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// Note remembers a moment of id, the latest so far.
func (m *LastSeen) Note(id string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = map[string]time.Time{}
	}
	if at.After(m.last[id]) {
		m.last[id] = at
	}
}

// Flush has all that was noted written. What fails is written the next time,
// unless something later was noted since.
func (m *LastSeen) Flush(ctx context.Context, write func(context.Context, map[string]time.Time) error) error {
	m.mu.Lock()
	batch := m.last
	m.last = nil
	m.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := write(ctx, batch)
	if err != nil {
		for id, at := range batch {
			m.Note(id, at)
		}
	}
	return err
}
