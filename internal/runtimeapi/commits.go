package runtimeapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/fault"
)

const (
	// commitDelay is how long a commit waits for another request on its channel, so that one
	// script does both.
	commitDelay = 50 * time.Millisecond
	maxCommits  = 64 // that wait on a channel
)

// holdCommit lets a commit wait for another request. It returns false if the commit is invalid
// or must not wait: after the last entry, or when so much is not committed that pushing might stop.
func (c *Conn) holdCommit(q *queue, r *request) bool {
	cl, err := c.find(r.Request)
	if err != nil {
		return false
	}
	cl.mu.Lock()
	canWait := cl.canCommit(r.position) && !cl.ended && len(cl.pushed) < pushedEntries/2 && cl.bytes < pushedBytes/2
	cl.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !canWait || c.closed || len(q.commits) >= maxCommits {
		return false
	}
	if r.Retry { // takes effect now, for the next requests, and not when the commit runs
		cl.failure, r.Retry = nil, false
	}
	q.commits = append(q.commits, r)
	if len(q.commits) == 1 {
		time.AfterFunc(c.service.commitDelay, func() { c.commitsDue(q, r) })
	}
	return true
}

// commitsDue runs the commits of a channel if the first of them still waits.
func (c *Conn) commitsDue(q *queue, first *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && len(q.commits) > 0 && q.commits[0] == first {
		q.due = true
		c.wake(first.Channel, q)
	}
}

// runCommits runs the commits that wait, the newest first: unless it fails, the others have
// nothing left to do. It returns the errors.
func (c *Conn) runCommits(q *queue) (err error) {
	c.mu.Lock()
	list := q.commits
	q.commits, q.due = nil, false
	c.mu.Unlock()
	for _, r := range slices.Backward(list) {
		err = errors.Join(err, c.run(r))
	}
	return err
}

// runNext runs a request after the commits that wait, or with them.
func (c *Conn) runNext(q *queue, r *request) {
	cl, _ := c.find(r.Request)
	c.mu.Lock()
	waiting, position := len(q.commits) > 0, q.newestCommit(cl)
	c.mu.Unlock()
	switch {
	case !waiting || r.Op == wire.OpAudio:
		_ = c.run(r)
	case r.Op == wire.OpCommit: // the newest first, as in runCommits
		_ = c.run(r)
		_ = c.runCommits(q)
	case cl != nil && (r.Op == wire.OpSend || r.Op == wire.OpAwait) && (cl.failure == nil || r.Retry):
		cl.alsoCommit = position
		ok, err := c.runInOrder(r)
		cl.alsoCommit = ""
		if errors.Is(err, calls.ErrUnknownPosition) { // an error of the commits
			_ = c.runCommits(q)
			_ = c.run(r)
			return
		}
		c.answer(r, ok, err)
		_ = c.runCommits(q) // those that were done with the request need no script
	default:
		if err := c.runCommits(q); r.Op == wire.OpRelease && fault.Is(translate(err), fault.ServiceUnavailable) {
			c.answer(r, nil, err) // otherwise the next claim gets entries whose commit the runtime will repeat
		} else {
			_ = c.run(r)
		}
	}
}

// newestCommit returns the highest position of the commits of a claim that wait; empty if there is
// none. cl may be nil. The caller holds mu of the connection.
func (q *queue) newestCommit(cl *claim) (position string) {
	for _, r := range q.commits {
		if cl != nil && cl.isNamedBy(r.Request) && wire.EntryNumber(r.position) > wire.EntryNumber(position) {
			position = r.position
		}
	}
	return position
}

// canCommit reports whether an entry was pushed and is not committed. The caller holds mu.
func (cl *claim) canCommit(position string) bool {
	number := wire.EntryNumber(position)
	return number > cl.committed && number <= wire.EntryNumber(cl.known)
}

// positionToCommit returns the position that the running request commits too; empty: none.
func (cl *claim) positionToCommit() string {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if !cl.canCommit(cl.alsoCommit) {
		return ""
	}
	return cl.alsoCommit
}

// flushCommits runs the commits that wait when the connection ends. The runtime does not
// learn of it, but its next claims need not repeat entries.
func (c *Conn) flushCommits(claims map[string]*claim) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	var flushing sync.WaitGroup
	for channelID, q := range c.queues { // nothing else uses them any more
		cl := claims[channelID]
		if position := q.newestCommit(cl); position != "" {
			flushing.Go(func() { _ = cl.commit(ctx, cl.current(), position) })
		}
	}
	flushing.Wait()
}
