package calls

import (
	"context"
	"errors"
	"time"

	"telapi/internal/background"
)

// confirmDelay is the time after which an abandoned claim is checked, to detect that a failover
// lost data. It exceeds the replication lag.
const confirmDelay = 20 * time.Second

// CheckLoss is called after ErrClaimLost. If the store has lost the newest message or work item of
// this claim, both sides learn of it: no other runtime knows of them. It fails with ErrLost if
// the store has lost the claim itself, and has an older one again.
func (c *Channel) CheckLoss(ctx context.Context) error { return c.checkLoss(ctx, c.name) }

func (c *Channel) checkLoss(ctx context.Context, name string) error {
	return c.do(ctx, "check_claim", name, c.token, c.runtime.clock.AtEarliest(c.ID, c.requestedAt), c.epoch, c.lastSent(), c.lastItem(), c.runtime.aheadOfReplicas())
}

// aheadOfReplicas returns the argument of scripts that tells whether what a runtime has received
// or claimed may be unknown to replicas. If it is lost, nobody was told that it is safe.
func (r *Runtime) aheadOfReplicas() string {
	if r.opts.MinReplicas > 0 {
		return "1"
	}
	return ""
}

// confirm checks after a while that the store still has what it acknowledged under this claim, or
// earlier if the runtime is closed. A claim that follows does not know of what is lost before
// it is made.
func (c *Channel) confirm() {
	r := c.runtime
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping.Err() != nil || c.lastSent() == c.sentBefore && c.lastItem() == "" {
		return
	}
	r.confirming.Go(func() {
		_ = background.Sleep(r.stopping, confirmDelay)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), attemptTimeout)
			err := c.checkLoss(ctx, "")
			cancel()
			if !errors.Is(err, ErrUnavailable) || background.Sleep(r.stopping, retryDelay) != nil {
				return
			}
		}
	})
}
