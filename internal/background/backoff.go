package background

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// Sleep waits for d. It returns ctx.Err() if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff is a series of delays that double from Min to Max. Next returns 50 % to 150 % of each,
// at random, so that clients do not retry at the same time.
//
// It uses crypto/rand, whose source tests can replace to make the runs of the
// simulator repeatable.
type Backoff struct {
	Min, Max time.Duration
	next     time.Duration // 0: Min
}

// StoreBackoff returns the delays between attempts while a store is unavailable.
func StoreBackoff() *Backoff {
	return &Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
}

// Next returns the next delay.
func (b *Backoff) Next() time.Duration {
	delay := min(max(b.next, b.Min), b.Max)
	b.next = 2 * delay
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	fraction := float64(binary.LittleEndian.Uint32(random[:])) / (1 << 32)
	return delay/2 + time.Duration(fraction*float64(delay))
}

// Reset starts the series again.
func (b *Backoff) Reset() { b.next = 0 }
