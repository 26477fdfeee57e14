package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	flushEvery   = 10 * time.Second
	flushTimeout = 5 * time.Second
)

// Uses gathers when keys were last used and writes it in batches, so that
// authentication never waits for the database.
type Uses struct {
	keys KeyStore
	log  *slog.Logger

	mu   sync.Mutex
	last map[string]time.Time
}

// NewUses returns an empty account of uses.
func NewUses(keys KeyStore, log *slog.Logger) *Uses {
	return &Uses{keys: keys, log: log, last: map[string]time.Time{}}
}

// Note remembers one use.
func (u *Uses) Note(id string, at time.Time) {
	u.mu.Lock()
	u.last[id] = at
	u.mu.Unlock()
}

// Run writes what was noted until ctx ends, and once more then.
func (u *Uses) Run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			u.flush(ctx)
		case <-ctx.Done():
			u.flush(context.WithoutCancel(ctx))
			return
		}
	}
}

func (u *Uses) flush(ctx context.Context) {
	u.mu.Lock()
	batch := u.last
	u.last = map[string]time.Time{}
	u.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := u.keys.TouchKeys(ctx, batch); err != nil {
		// Last use is a hint for administrators; it is not worth keeping
		// a growing backlog while the database is away.
		u.log.WarnContext(ctx, "last uses of API keys were not written", "keys", len(batch), "error", err)
	}
}
