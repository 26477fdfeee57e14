// Package sleep waits until a duration or a context ends.
package sleep

import (
	"context"
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
