package runtimeapi

import (
	"context"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// request is a request that waits for earlier ones on its channel.
type request struct {
	wire.Request
	run      func(context.Context) (any, error)
	deadline time.Time
	bytes    int64
	silent   bool   // there is no reply, or run sends it, unless it fails
	position string // that a commit commits
}

// queue has the requests of a channel that wait. It is guarded by mu of the connection.
type queue struct {
	requests []*request
	commits  []*request // that wait for another request, and that no longer take a slot; see holdCommit
	due      bool       // they have waited long enough
	working  bool       // a goroutine runs requests
}

// ordered reports whether a request waits for earlier ones to succeed. Commit and cancel do
// not: they work while the store is full, and remove data. Audio may be dropped.
func (r *request) ordered() bool {
	return r.Op != wire.OpCommit && r.Op != wire.OpCancel && r.Op != wire.OpAudio
}

// enqueue runs a request after the earlier ones on its channel.
func (c *Conn) enqueue(r *request) {
	if r.Op == wire.OpAudio {
		if len(c.slots) >= maxRequests/2 || c.service.requests.Take(c.team, r.bytes) != nil {
			c.service.audioDropped.Inc()
			return
		}
		c.slots <- struct{}{} // only this goroutine adds to it
	} else {
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		if c.service.requests.Wait(c.ctx, c.team, r.bytes) != nil {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.service.requests.Return(c.team, r.bytes)
		return
	}
	q := c.queues[r.Channel]
	if q == nil {
		q = &queue{}
		c.queues[r.Channel] = q
	}
	q.requests = append(q.requests, r)
	c.wake(r.Channel, q)
}

// wake starts a goroutine that runs the requests of a channel, unless there is one. The caller
// holds mu.
func (c *Conn) wake(channelID string, q *queue) {
	if !q.working {
		q.working = true
		c.running.Go(func() { c.work(channelID, q) })
	}
}

// work runs the requests of a channel until there are none, or only commits that wait for
// another request.
func (c *Conn) work(channelID string, q *queue) {
	for {
		c.mu.Lock()
		if len(q.requests) == 0 && !q.due {
			q.working = false
			if len(q.commits) == 0 {
				delete(c.queues, channelID)
			}
			c.mu.Unlock()
			return
		}
		var r *request
		if len(q.requests) > 0 {
			r, q.requests = q.requests[0], q.requests[1:]
		}
		c.mu.Unlock()
		switch {
		case r == nil:
			_ = c.runCommits(q)
		case r.Op == wire.OpCommit && c.holdCommit(q, r):
			c.finish(r)
		default:
			c.runNext(q, r)
			c.finish(r)
		}
	}
}

// finish returns what a queued request takes.
func (c *Conn) finish(r *request) {
	c.service.requests.Return(c.team, r.bytes)
	<-c.slots
}

// run runs a request and replies.
func (c *Conn) run(r *request) error {
	ok, err := c.runInOrder(r)
	c.answer(r, ok, err)
	return err
}

func (c *Conn) answer(r *request, ok any, err error) {
	if !r.silent || err != nil {
		c.reply(r.ID, ok, err)
	}
}

// runInOrder runs a request. If it fails for now, those behind it fail too until the runtime
// knows of the failure: they must not overtake it when the runtime repeats it.
func (c *Conn) runInOrder(r *request) (ok any, err error) {
	cl, _ := c.find(r.Request) // nil: there is no order to keep
	if cl != nil && r.Retry {
		cl.failure = nil
	}
	if cl != nil && r.ordered() && cl.failure != nil {
		return nil, cl.failure
	}
	ctx, cancel := context.WithDeadline(c.ctx, r.deadline)
	defer cancel()
	ok, err = r.run(ctx)
	if cl != nil && r.ordered() && fault.Is(translate(err), fault.ServiceUnavailable) {
		cl.failure = err
	}
	return ok, err
}
