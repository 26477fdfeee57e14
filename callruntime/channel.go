package callruntime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// maxAudio is the number of audio frames that wait for Receive. More are dropped.
const maxAudio = 256

// Channel is one live conversation. Its methods are safe for concurrent use.
type Channel struct {
	ID, TeamID, EndpointID      string
	Mode, CallID, TransactionID string
	Profile                     jsontext.Value      // gatewayProfile
	Offer                       *wire.Offer         // of a session: its identity and metadata; nil for a channel that Open opened
	Committed                   string              // the committed position at the time of the claim; empty if none
	WorkItems                   []wire.OpenWorkItem // those that were open at the time of the claim
	LostAt                      time.Time           // when the store had last lost data of the channel at the time of the claim; zero if never

	runtime *Runtime
	claim   string          // a secret
	ctx     context.Context // ends when the channel or its runtime is closed, or the claim is lost
	cancel  context.CancelCauseFunc
	outbox  chan *outgoing

	mu       sync.Mutex
	changed  chan struct{} // closed when one of the following changes
	socket   *socket       // the connection that pushes entries
	pushed   int64         // number of the newest entry that it has pushed, or that was committed before
	queue    []Delivery    // entries for Receive. The service bounds them, because it waits for commits
	newest   string        // position of the newest entry that was queued; empty after a loss
	received int64         // number of the newest entry that Receive has returned
	last     string        // position of the entry channel_ended, once Receive has returned it
	lost     bool          // Receive has to report a loss
	lostAt   int64         // time of the newest known loss
	audio    []Delivery
	dropped  int64 // audio frames
}

// Delivery is one received entry.
type Delivery struct {
	Position string // for Commit, once the entry is handled; empty for audio frames
	Entry    wire.Entry
	JSON     jsontext.Value // the entry as the service sent it; nil for audio frames
}

func newChannel(r *Runtime, s *socket, c wire.Claimed) *Channel {
	number := wire.EntryNumber(c.Position)
	channel := &Channel{
		ID: c.Channel, TeamID: c.Team, EndpointID: c.Endpoint, Mode: c.Mode, CallID: c.CallID, TransactionID: c.TransactionID,
		Profile: c.Profile, Offer: c.Session, Committed: c.Position, WorkItems: c.WorkItems, runtime: r, claim: c.Claim,
		outbox: make(chan *outgoing, maxMessages), changed: make(chan struct{}),
		socket: s, pushed: number, received: number, newest: c.Position, lostAt: c.LostAt,
	}
	if c.LostAt > 0 {
		channel.LostAt = time.UnixMilli(c.LostAt)
	}
	channel.ctx, channel.cancel = context.WithCancelCause(r.ctx)
	return channel
}

// update changes the state of the channel and wakes the calls that wait for it.
func (c *Channel) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait waits until ready returns true, which is called with mu held. It fails when the
// channel is closed, when ctx ends, or with errDisconnected when stop is closed.
func (c *Channel) wait(ctx context.Context, stop <-chan struct{}, ready func() bool) error {
	for {
		c.mu.Lock()
		ok, changed := c.ctx.Err() == nil && ctx.Err() == nil && ready(), c.changed
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stop:
			return errDisconnected
		case <-changed:
		}
	}
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
	closed := c.wait(ctx, nil, func() bool {
		switch {
		case c.lost:
			c.lost, err = false, ErrLost
		case len(c.queue) > 0:
			d, c.queue = c.queue[0], c.queue[1:]
			c.received = wire.EntryNumber(d.Position)
			if err = json.Unmarshal(d.JSON, &d.Entry); err != nil {
				err = fmt.Errorf("decode entry %s: %w", d.Position, err)
			}
			if d.Entry.Kind == wire.KindChannelEnded {
				c.last = d.Position
			}
		case c.last != "":
			err = ErrEnded
		case len(c.audio) > 0:
			d, c.audio = c.audio[0], c.audio[1:]
		default:
			return false
		}
		return true
	})
	if closed != nil {
		err = closed
	}
	return d, err
}

// AudioDropped returns the number of audio frames that were dropped because Receive was
// not called in time, or because the connection could not take more.
func (c *Channel) AudioDropped() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// push queues an entry, unless an earlier connection has pushed it already.
func (c *Channel) push(s *socket, p wire.Push) error {
	number := wire.EntryNumber(p.Position)
	if number < 1 {
		return fmt.Errorf("invalid position %q of an entry", p.Position)
	}
	c.update(func() {
		if c.socket != s {
			return // the next connection pushes it
		}
		c.pushed = max(c.pushed, number)
		if number > wire.EntryNumber(c.newest) {
			c.newest, c.queue = p.Position, append(c.queue, Delivery{Position: p.Position, JSON: p.Entry})
		}
	})
	return nil
}

func (c *Channel) pushAudio(m *wire.ChannelMessage) {
	c.update(func() {
		if len(c.audio) == maxAudio {
			c.dropped++
			return
		}
		c.audio = append(c.audio, Delivery{Entry: wire.Entry{Kind: wire.KindFrame, ChannelID: c.ID, At: m.Timestamp, Message: m}})
	})
}

// lose notes a loss, unless it is known. The service pushes all entries after the
// committed position again.
func (c *Channel) lose(at int64) {
	c.update(func() {
		if at != c.lostAt {
			c.lostAt, c.lost, c.queue, c.newest, c.last, c.pushed, c.received = at, true, nil, "", "", 0, 0
		}
	})
}

// resumption returns what the next connection needs to continue the channel.
func (c *Channel) resumption() wire.Resume {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.Resume{Channel: c.ID, Claim: c.claim, Received: c.newest}
}

// resume continues the channel on a new connection.
func (c *Channel) resume(s *socket, state wire.Resumed) {
	if state.LostAt != 0 {
		c.lose(state.LostAt)
	}
	c.update(func() { c.socket, c.pushed = s, wire.EntryNumber(state.Position) })
}

// call sends a request about the channel.
func (c *Channel) call(ctx context.Context, q request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
	err := c.runtime.call(ctx, q)
	switch {
	case err == nil:
		return nil
	case c.ctx.Err() != nil: // rather than "not found"
		err = context.Cause(c.ctx)
	}
	return fmt.Errorf("%s: %w", q.head.Op, err)
}

// head returns the part that all requests about the channel have.
func (c *Channel) head(op wire.Op) wire.Request { return wire.Request{Op: op, Channel: c.ID} }

// Commit marks all entries up to a position as handled. The next runtime that claims
// the channel receives the entries after this position. Committing the last entry,
// channel_ended, also closes the channel for this runtime. Commit has no effect if
// Receive is about to report ErrLost.
func (c *Channel) Commit(ctx context.Context, position string) error {
	number := wire.EntryNumber(position)
	c.mu.Lock()
	lost, known, last := c.lost, number > 0 && number <= c.received, position == c.last
	c.mu.Unlock()
	if !lost && !known {
		return fmt.Errorf("commit %q: %w", position, ErrUnknownPosition)
	}
	q := &wire.Commit{Request: c.head(wire.OpCommit), Position: position}
	err := c.call(ctx, request{head: &q.Request, body: q, ready: func(ctx context.Context, s *socket) (err error) {
		// After a reconnect the service takes only commits of entries that it has pushed again.
		stopped := c.wait(ctx, s.done, func() bool {
			if c.lost {
				err = ErrLost
			}
			return c.lost || c.socket == s && c.pushed >= number
		})
		return errors.Join(err, stopped)
	}})
	if last && (err == nil || errors.Is(err, ErrEnded) || errors.Is(err, ErrClaimLost)) {
		c.forget(ErrEnded) // the claim ends with this commit, whose reply may have been lost
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return nil
	}
	return err
}

// forget closes the channel for this runtime.
func (c *Channel) forget(cause error) {
	c.cancel(cause)
	c.runtime.mu.Lock()
	defer c.runtime.mu.Unlock()
	if c.runtime.channels[c.ID] == c {
		delete(c.runtime.channels, c.ID)
	}
}

// Close releases the claim, so that another runtime can claim the channel at once. A
// session is offered to the runtimes again. The channel stays open; Receive fails with
// ErrClosed. Closing a channel that has ended or whose claim is lost has no effect.
func (c *Channel) Close(ctx context.Context) error {
	if c.ctx.Err() != nil {
		return nil //nolint:nilerr // it is closed already
	}
	c.forget(ErrClosed)
	q := c.head(wire.OpRelease)
	err := c.runtime.call(ctx, request{head: &q, body: &q})
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrEnded) {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// End ends the channel for all participants. Ending it again has no effect.
func (c *Channel) End(ctx context.Context, reason string) error {
	q := &wire.End{Request: c.head(wire.OpEnd), Reason: reason}
	return c.call(ctx, request{head: &q.Request, body: q})
}
