// Package sleep waits until a duration or a context ends, and computes the delays
// between retries.
package sleep

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// For waits for d. It returns ctx.Err() if ctx ends first.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff is a series of delays that double from Min to Max. Each delay is 50 % to
// 150 % of that, at random, so that clients do not retry at the same time.
//
// It uses crypto/rand, whose source tests can replace to make the runs of the
// simulator repeatable.
type Backoff struct {
	Min, Max time.Duration
	attempts int
}

// Next returns the next delay.
func (b *Backoff) Next() time.Duration {
	delay := b.Max
	if shifted := b.Min << b.attempts; b.attempts < 32 && shifted < b.Max {
		delay = shifted
		b.attempts++
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	fraction := float64(binary.LittleEndian.Uint32(random[:])) / (1 << 32)
	return delay/2 + time.Duration(fraction*float64(delay))
}

// Reset makes Next return Min again, randomized.
func (b *Backoff) Reset() { b.attempts = 0 }
