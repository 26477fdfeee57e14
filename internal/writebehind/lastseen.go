package writebehind

import (
	"context"
	"sync"
	"time"
)

// LastSeen collects the last time that each ID was seen, until Flush writes
// them. The zero value is ready to use from any goroutine.
type LastSeen struct {
	mu    sync.Mutex
	times map[string]time.Time
}

// Note records that id was seen. Earlier times than the latest are ignored.
func (l *LastSeen) Note(id string, at time.Time) {
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
			l.Note(id, at)
		}
	}
	return err
}
