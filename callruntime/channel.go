package callruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// maxQueued is the number of audio frames that wait for Receive, and of frames that wait to be
// written. More audio is dropped, and requests wait.
const maxQueued = 256

// Channel is one live conversation. Its methods are safe for concurrent use.
type Channel struct {
	ID           string
	wire.Claimed // at the time of the claim

	runtime *Runtime
	ctx     context.Context // ends with the claim; its cause says why
	cancel  context.CancelCauseFunc

	// Guarded by mu of the runtime.
	epoch   context.Context // also ends with a loss, until Receive reports it
	lose    context.CancelCauseFunc
	changed chan struct{} // closed when one of these changes
	queue   []Delivery    // entries for Receive. The service bounds them, because it waits for commits
	audio   []Delivery
	newest  string // position of the newest entry that was queued; empty after a loss
	last    string // position of the entry channel_ended, once Receive has returned it
	lostAt  int64  // time of the newest known loss
	failure error  // of a commit, until the next one
}

// Delivery is one received entry.
type Delivery struct {
	Position string // for Commit, once the entry is handled; empty for audio frames
	Entry    wire.Entry
	JSON     jsontext.Value // the entry as the service sent it; nil for audio frames
	WorkItem *wire.Awaited  // that of a chat frame, if Accept asked for one and it was registered
}

// Receive waits for the next entry. It returns the entries in order, and audio frames
// as they arrive. Audio does not delay entries: it is returned only when no entry is
// waiting.
//
// Receive fails with ErrEnded after the last entry, with ErrClaimLost if another
// runtime has claimed the channel, and with ErrClosed after Close. It fails with
// ErrLost once if the store has lost data of the channel. Then call Receive again: it
// continues after the position that the store knows as committed, so entries can
// arrive again. Await work items again whose results are missing, with the same ID:
// those that the store still has are unchanged.
//
// If an entry cannot be decoded, Receive returns its position with the error; the next
// call continues after it.
func (c *Channel) Receive(ctx context.Context) (d Delivery, err error) {
	c.runtime.mu.Lock()
	defer c.runtime.mu.Unlock()
	for {
		switch {
		case c.ctx.Err() != nil:
			return d, context.Cause(c.ctx)
		case c.epoch.Err() != nil:
			c.epoch, c.lose = context.WithCancelCause(c.ctx)
			return d, ErrLost
		case len(c.queue) > 0:
			d, c.queue = c.queue[0], c.queue[1:]
			if err = json.Unmarshal(d.JSON, &d.Entry); d.Entry.Kind == wire.KindChannelEnded {
				c.last = d.Position
			}
			return d, err
		case c.last != "":
			return d, ErrEnded
		case len(c.audio) > 0:
			d, c.audio = c.audio[0], c.audio[1:]
			return d, nil
		case ctx.Err() != nil:
			return d, context.Cause(ctx)
		}
		c.runtime.wait(ctx, c.ctx, c.changed)
	}
}

// push handles what the service pushes. Entries that an earlier connection has pushed already
// and known losses are ignored. After a loss, the service pushes all entries after the committed
// position again. The caller holds mu of the runtime.
func (c *Channel) push(p wire.Push) error {
	switch {
	case p.Event == wire.PushEntry && wire.EntryNumber(p.Position) < 1:
		return errors.New("invalid position of an entry")
	case p.Event == wire.PushEntry && wire.EntryNumber(p.Position) > wire.EntryNumber(c.newest):
		c.newest, c.queue = p.Position, append(c.queue, Delivery{Position: p.Position, JSON: p.Entry, WorkItem: p.WorkItem})
	case p.Event == wire.PushAudio && p.Message != nil && len(c.audio) < maxQueued:
		c.audio = append(c.audio, Delivery{Entry: wire.Entry{Kind: wire.KindFrame, ChannelID: c.ID, At: p.Message.Timestamp, Message: p.Message}})
	case p.Event == wire.PushLost && p.At != 0 && p.At != c.lostAt:
		c.lostAt, c.queue, c.newest, c.last, c.failure = p.At, nil, "", "", nil
		c.lose(ErrLost)
	case p.Event == wire.PushClaimLost && p.Claim == c.Claim:
		c.last = "" // so that the cause is ErrClaimLost: another runtime commits the end
		c.close(ErrClaimLost)
	}
	close(c.changed) // wakes the calls of Receive
	c.changed = make(chan struct{})
	return nil
}

// close ends the channel for this runtime, and its requests. The caller holds mu of the
// runtime.
func (c *Channel) close(cause error) {
	if c.last != "" { // Receive has returned the end
		cause = ErrEnded
	}
	c.cancel(cause)
	if c.runtime.channels[c.ID] == c {
		delete(c.runtime.channels, c.ID)
	}
}

// head returns the part that all requests about the channel have.
func (c *Channel) head(op wire.Op) wire.Request {
	return wire.Request{Op: op, Channel: c.ID, Claim: c.Claim}
}

// call sends a request that needs the claim, and waits for the reply.
func (c *Channel) call(ctx context.Context, b body) error {
	_, err := c.runtime.call(ctx, c.ctx, b)
	return err
}

// Commit marks all entries up to a position as handled. The next runtime that claims
// the channel receives the entries after this position. Commit does not wait for the
// service; if it fails later, the next Commit returns the error. Committing the last
// entry, channel_ended, waits and closes the channel for this runtime. Commit has no effect
// if the position is empty, as that of audio, or if Receive is about to report ErrLost.
func (c *Channel) Commit(ctx context.Context, position string) error {
	if position == "" {
		return nil
	}
	r, head := c.runtime, c.head(wire.OpCommit)
	content, err := encode(wire.Commit{Request: head, Position: position})
	if err != nil {
		return err
	}
	r.mu.Lock()
	epoch := c.epoch
	if position == c.last && ctx.Err() == nil && c.ctx.Err() == nil { // even if an earlier commit has failed
		defer r.mu.Unlock()
		_, err = r.exchange(ctx, epoch, head, content)
		switch {
		case position == c.last && (err == nil || errors.Is(err, ErrEnded)):
			c.close(ErrEnded)
			return nil
		case errors.Is(context.Cause(epoch), ErrLost): // the position has no meaning any more
			return nil
		}
		return err
	}
	err, c.failure = errors.Join(cmp.Or(context.Cause(ctx), context.Cause(c.ctx)), c.failure), nil
	if err != nil {
		r.mu.Unlock()
		return fmt.Errorf("commit: %w", err)
	}
	r.running.Go(func() { // takes over mu, so that no later request overtakes this one
		defer r.mu.Unlock()
		if _, err := r.exchange(epoch, epoch, head, content); err != nil && epoch.Err() == nil {
			c.failure = err
		}
	})
	return nil
}

// Close releases the claim, so that another runtime can claim the channel at once. A
// session is offered to the runtimes again. The channel stays open; Receive fails with
// ErrClosed. Closing a channel that has ended or whose claim is lost has no effect.
func (c *Channel) Close(ctx context.Context) error {
	err := c.call(ctx, c.head(wire.OpRelease))
	c.runtime.mu.Lock()
	defer c.runtime.mu.Unlock()
	if c.ctx.Err() != nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrEnded) {
		err = nil
	}
	c.close(ErrClosed)
	return err
}

// End ends the channel for all participants. Ending it again has no effect.
func (c *Channel) End(ctx context.Context, reason string) error {
	return c.call(ctx, wire.End{Request: c.head(wire.OpEnd), Reason: reason})
}

// Send sends durable messages to the browser, in order: at most 64 of 64 KiB each, or none if one
// of them is invalid. A browser that is not connected receives them when it reconnects. Empty
// identifying fields are filled in. If the outcome is unknown, sending a message again with the
// same MessageID is safe.
func (c *Channel) Send(ctx context.Context, messages ...wire.ChannelMessage) error {
	messages = slices.Clone(messages)
	for i := range messages {
		messages[i].MessageID = cmp.Or(messages[i].MessageID, uuid.NewString())
	}
	return c.call(ctx, wire.Send{Request: c.head(wire.OpSend), Messages: messages})
}

// SendAudio sends an audio frame. A browser that is not connected misses it. Frames are
// dropped while the connection is lost or busy.
func (c *Channel) SendAudio(_ context.Context, audio jsontext.Value) error {
	frame, err := json.Marshal(wire.SendAudio{Request: c.head(wire.OpAudio), Message: wire.ChannelMessage{Type: wire.TypeAudio, Audio: audio}})
	c.runtime.mu.Lock()
	defer c.runtime.mu.Unlock()
	if s := c.runtime.socket; err == nil && c.ctx.Err() == nil && s != nil && len(s.out) < maxQueued {
		s.out <- frame
	}
	return errors.Join(err, context.Cause(c.ctx))
}

// Await registers a work item. Call it before the request to the provider. Receive
// returns the result after those of earlier work items, or an entry of kind timeout if
// the item expires first. Awaiting the same ID again returns the same item, unless 1,024
// later ones are settled. If the outcome is unknown because ctx has ended, Await cancels the
// item, so that it does not delay later ones. The defaults are a random ID, wire.BotItem, wire.ScopeItem and 5 minutes.
// Trace is that of the entry that caused the request: the callback's entries continue it.
func (c *Channel) Await(ctx context.Context, await wire.Await) (item wire.Awaited, err error) {
	await.Request, await.WorkItemID = c.head(wire.OpAwait), cmp.Or(await.WorkItemID, uuid.NewString())
	mayBeSent := ctx.Err() == nil
	q, err := c.runtime.call(ctx, c.ctx, await)
	if err == nil {
		err = json.Unmarshal(q.reply.OK, &item)
	} else if mayBeSent && ctx.Err() != nil && c.ctx.Err() == nil {
		go func() { _ = c.Cancel(c.ctx, await.WorkItemID) }() // ends with the channel
	}
	return item, err
}

// Cancel cancels a work item. Results that wait for it are received without it, a
// result that has arrived early is dropped, and a later callback is rejected. It fails
// with ErrNotFound if the result is already on the stream or the item has expired.
func (c *Channel) Cancel(ctx context.Context, workItemID string) error {
	return c.call(ctx, wire.Cancel{Request: c.head(wire.OpCancel), WorkItemID: workItemID})
}
