package sleep

import (
	"crypto/rand"
	"encoding/binary"
	"time"
)

// Backoff is a series of delays that double from Min to Max. Each is randomized
// by up to half of it, so that clients do not retry at the same time.
//
// It draws from crypto/rand because tests can replace that source, which makes
// the simulator's runs repeatable.
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

// Reset starts the series again.
func (b *Backoff) Reset() { b.attempts = 0 }
