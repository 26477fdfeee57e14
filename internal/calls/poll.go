package calls

import (
	"context"
	"errors"
	"time"
)

// Watcher is notified of what happens on a claimed channel, so that an idle channel needs
// no goroutine. Its methods must not block.
type Watcher interface {
	// Wake is called when Poll may return entries or an error.
	Wake()
	// Audio is called with an audio frame of the browser, a ChannelMessage as JSON.
	Audio(message string)
}

// Poll returns the next entries, at most the given number and bytes; with force it returns
// one that is larger. The caller calls it again after the returned time, or earlier if the
// watcher is called. Poll renews the claim and times out work items. Its errors are those
// of Receive. Only one Poll may run at a time.
func (c *Channel) Poll(ctx context.Context, entries int, bytes int64, force bool) (found []Delivery, again time.Duration, err error) {
	if c.ctx.Err() != nil {
		return nil, 0, context.Cause(c.ctx)
	}
	lease := c.runtime.opts.Lease
	if c.checkNow.Swap(false) || time.Until(*c.claimedUntil.Load()) <= lease-lease/3 {
		if err := c.renewClaim(ctx); err != nil {
			return nil, 0, err
		}
	}
	due, _, err := c.touch(ctx)
	if err != nil {
		return nil, 0, err
	}
	again = min(time.Until(due), time.Until(*c.claimedUntil.Load())-(lease-lease/3))
	newest := c.newestEntry.Load()
	if entries <= 0 || newest != nil && *newest == c.position {
		return nil, again, nil
	}
	if err := c.read(ctx, entries); err != nil {
		return nil, 0, err
	}
	list := c.unread
	c.unread = nil
	for i, d := range list {
		if bytes -= int64(len(d.JSON)); bytes < 0 && (i > 0 || !force) {
			return list[:i], again, nil // the caller calls again when it can take more
		}
		position := d.Position // a pointer to the member would keep the entry in memory
		c.position = position
		c.lastReceived.Store(&position)
		if d.isEnd() {
			c.lastEntry.Store(&position)
		}
	}
	if len(list) < entries {
		position := c.position
		c.newestEntry.CompareAndSwap(newest, &position) // unless a notice has arrived since
	} else {
		again = 0
	}
	return list, again, nil
}

// Check makes the next Poll check whether another runtime has the claim.
func (c *Channel) Check() {
	c.checkNow.Store(true)
	c.wake()
}

// Ended reports whether the last entry is committed.
func (c *Channel) Ended() bool { return errors.Is(context.Cause(c.ctx), ErrEnded) }
