// Package ratelimit owns server protection: IP tiers and the team's daily
// quota, counted in the key-value store so that all instances share one count.
package ratelimit

import (
	"context"
	"time"
)

// Grant is the store's answer to a lease.
type Grant struct {
	Permits   int64         // how many of the asked permits were granted; 0: used up
	Remaining int64         // what is left in the window for everybody
	Reset     time.Duration // until the window ends
}

// Counter counts permits in windows. Lease is atomic: all callers on all
// instances together are never granted more than limit in one window. A window
// starts with its first permit; one that is longer than asked is shortened.
// Lease returns in bounded time even if ctx has no end.
type Counter interface {
	Lease(ctx context.Context, key string, want, limit int64, window time.Duration) (Grant, error)
}

// LimitsStore is where the administrator's limits live, one JSON value.
type LimitsStore interface {
	// Limits returns the saved value; ok is false when there is none.
	Limits(ctx context.Context) (value []byte, ok bool, err error)
	// SaveLimits stores a value and announces it to every instance, unless
	// the value there is no longer old (nil: none); then it returns false.
	SaveLimits(ctx context.Context, old, value []byte) (bool, error)
}

// Mirror keeps a copy of the limits where a wiped key-value store cannot lose it.
type Mirror interface {
	Setting(ctx context.Context, name string) (value []byte, ok bool, err error)
	SaveSetting(ctx context.Context, name string, value []byte) error
}
