// Package ratelimit protects the server: it limits requests per client address
// and tier, and per team and day. The counts are in the key-value store, which
// all instances share.
package ratelimit

import (
	"context"
	"time"
)

// Grant is the result of a lease.
type Grant struct {
	Permits   int64         // granted; 0 if the limit is used up
	Remaining int64         // left in the window for all instances
	Reset     time.Duration // until the window ends
}

// Counter counts permits in windows. Lease is atomic: all instances together
// never get more than limit permits per window. A window starts with its first
// permit. A window longer than requested is shortened. Lease returns in bounded
// time even if ctx has no deadline.
type Counter interface {
	Lease(ctx context.Context, key string, want, limit int64, window time.Duration) (Grant, error)
}

// LimitsStore holds the administrator's limits as one JSON value.
type LimitsStore interface {
	// Limits returns the saved value. ok is false if there is none.
	Limits(ctx context.Context) (value []byte, ok bool, err error)
	// SaveLimits stores a value and announces it to all instances. It returns
	// false and changes nothing if the stored value is not old (nil: no value).
	SaveLimits(ctx context.Context, old, value []byte) (bool, error)
}

// Mirror holds a copy of the limits that survives the loss of the key-value
// store.
type Mirror interface {
	Setting(ctx context.Context, name string) (value []byte, ok bool, err error)
	SaveSetting(ctx context.Context, name string, value []byte) error
}
