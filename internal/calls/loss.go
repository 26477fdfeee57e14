package calls

import (
	"context"
	"errors"
	"time"

	"telapi/internal/background"
	"telapi/internal/kv"
)

// laterDelay is the time after which an abandoned claim is checked, and a release repeated, since
// a failover may have lost data. It exceeds the replication lag.
const laterDelay = 20 * time.Second

// CheckLoss is called after ErrClaimLost. If the store has lost the newest message or work item of
// this claim, it reports the loss to both sides, because no other runtime can notice it. It fails
// with ErrLost if the store has lost the claim itself, and has an older one again.
func (c *Channel) CheckLoss(ctx context.Context) error { return c.checkLoss(ctx, c.name) }

// checkLoss runs the script check_claim. If name is empty, the loss of the claim itself does not matter.
func (c *Channel) checkLoss(ctx context.Context, name string) error {
	// The store's clock may have been set since. The texts have equal lengths.
	requestedAt := min(c.earliest, c.runtime.clock.AtEarliest(c.ID, c.requestedAt))
	return c.do(ctx, "check_claim", name, c.token, requestedAt, c.epoch, c.lastSent(), c.lastItem(), c.runtime.aheadOfReplicas(), c.awaitChat)
}

// aheadOfReplicas returns the argument "1" of scripts if replicas may not have what this runtime
// has received or claimed. Its loss is not reported to others, because data is acknowledged only
// once replicas have it.
func (r *Runtime) aheadOfReplicas() string {
	return kv.Flag(r.opts.MinReplicas > 0)
}

// checkLossLater checks later that the store still has what it acknowledged under this abandoned
// claim. A later claim cannot notice what was lost before it.
func (c *Channel) checkLossLater() {
	if c.lastSent() != c.sentBefore || c.lastItem() != "" {
		c.runtime.callLater(func(ctx context.Context) error { return c.checkLoss(ctx, "") })
	}
}

// callLater calls f after laterDelay, or earlier if the runtime is closed, until the store is
// available. It does nothing after Close.
func (r *Runtime) callLater(f func(context.Context) error) {
	_ = r.later.Go(context.Background(), func(closing context.Context) {
		_ = background.Sleep(closing, laterDelay)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
			err := f(ctx)
			cancel()
			if !errors.Is(err, ErrUnavailable) || background.Sleep(closing, retryDelay) != nil {
				return
			}
		}
	})
}
