package runtimeapi

import (
	"context"
	"errors"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/fault"
)

// maxSentTogether is the maximum size of the frames of sends that are combined. A message that is
// too large would make all of them fail; in frames of this size there is none.
const maxSentTogether = calls.MaxMessageBytes / 2

// request is a request that waits for earlier ones on its channel.
type request struct {
	wire.Request
	run      func(context.Context) (any, error)
	deadline time.Time
	bytes    int64
	silent   bool                  // there is no reply, or run sends it, unless it fails
	position string                // that a commit commits
	messages []wire.ChannelMessage // that a send sends; other requests have none
	parts    []*request            // the sends that this request stands for, if more than one; see take
}

// queue has the requests of a channel that wait. It is guarded by mu of the connection.
type queue struct {
	requests []*request
	commits  []*request // that wait for another request, and that no longer take a slot; see holdCommit
	due      bool       // the commits have waited for commitDelay
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
		if len(c.slots) >= maxRequests/2 || c.service.requestBytes.Take(c.team, r.bytes) != nil {
			c.service.audioDropped.Inc()
			return
		}
		c.slots <- struct{}{} // does not wait: only this goroutine adds to it
	} else {
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		if c.service.requestBytes.Wait(c.ctx, c.team, r.bytes) != nil {
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.service.requestBytes.Return(c.team, r.bytes)
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
		r := c.take(q)
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

// take removes and returns the next request; nil if there is none. Sends that have queued up behind each other
// become one request: most of what a send costs the store does not depend on the number of
// messages. The caller holds mu.
func (c *Conn) take(q *queue) *request {
	if len(q.requests) == 0 {
		return nil
	}
	first := q.requests[0]
	count, messages, bytes := 1, len(first.messages), first.bytes
	for _, r := range q.requests[1:] {
		messages, bytes = messages+len(r.messages), bytes+r.bytes
		if len(first.messages) == 0 || len(r.messages) == 0 || r.Claim != first.Claim || r.Retry || messages > maxMessages || bytes > maxSentTogether {
			break
		}
		count++
	}
	list := q.requests[:count]
	q.requests = q.requests[count:]
	if count == 1 {
		return first
	}
	together := &request{Request: first.Request, deadline: first.deadline, parts: list}
	for _, r := range list {
		together.messages = append(together.messages, r.messages...)
	}
	together.run = c.send(together)
	return together
}

// finish returns what a queued request takes.
func (c *Conn) finish(r *request) {
	for _, part := range r.parts {
		c.finish(part)
	}
	if len(r.parts) == 0 {
		c.service.requestBytes.Return(c.team, r.bytes)
		<-c.slots
	}
}

// run runs a request and replies.
func (c *Conn) run(r *request) error {
	ok, err := c.runInOrder(r)
	c.answer(r, ok, err)
	return err
}

func (c *Conn) answer(r *request, ok any, err error) {
	for _, part := range r.parts {
		if errors.Is(err, calls.ErrEnded) { // each by itself: a message that was sent before the end has no error
			_ = c.run(part)
		} else {
			c.reply(part.ID, part.sent(), err)
		}
	}
	if len(r.parts) == 0 && (!r.silent || err != nil) {
		c.reply(r.ID, ok, err)
	}
}

// sent returns the reply to a send.
func (r *request) sent() wire.Sent {
	sent := wire.Sent{MessageIDs: make([]string, len(r.messages))}
	for i, m := range r.messages {
		sent.MessageIDs[i] = m.MessageID
	}
	return sent
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
