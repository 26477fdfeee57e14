// Package pause owns waiting that ends early with its context.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends; then it returns why.
func For(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
