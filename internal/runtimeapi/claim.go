package runtimeapi

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
)

const (
	maxWorkers  = 16              // goroutines of a connection that push entries
	pollBatch   = 32              // entries read at once
	pollTimeout = 2 * time.Second // of one read
	pollRetry   = 500 * time.Millisecond
	maxAttempts = 3 // of a request, if the store loses data
)

// claim is a channel that a connection has claimed. While nothing happens, it needs no
// goroutine.
type claim struct {
	conn   *Conn
	id     string // of the channel
	secret string
	timer  *time.Timer // calls Wake when the claim has to be renewed, or a work item times out

	// Guarded by conn.mu.
	queued, working, woken bool

	recovering sync.Mutex // held while the claim is taken again after a loss

	mu        sync.Mutex
	started   bool // the reply is sent, so that entries may follow
	stopped   bool
	channel   *calls.Channel
	committed int64         // number of the entry
	pushed    []pushedEntry // and not committed
	bytes     int64         // of them
}

type pushedEntry struct {
	position string
	bytes    int64
}

// token returns a token for a claim of the connection.
func (c *Conn) token() string { return c.id + "/" + rand.Text() }

// claimName returns the name of a claim in the store.
func (c *Conn) claimName(secret string) string { return c.name + "/" + secret }

func (c *Conn) newClaim(channelID, secret string) *claim {
	cl := &claim{conn: c, id: channelID, secret: secret}
	cl.timer = time.AfterFunc(time.Hour, cl.Wake)
	cl.timer.Stop()
	return cl
}

// request returns how to claim the channel.
func (cl *claim) request() calls.Claim {
	return calls.Claim{Name: cl.conn.claimName(cl.secret), Token: cl.conn.token(), Watcher: cl}
}

// add makes a claimed channel a claim of the connection. It returns false if the
// connection has ended.
func (c *Conn) add(cl *claim, ch *calls.Channel) bool {
	cl.channel, cl.committed = ch, wire.EntryNumber(ch.Committed)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	former := c.claims[cl.id]
	c.claims[cl.id] = cl
	c.mu.Unlock()
	if former != nil {
		former.stop()
	} else {
		c.service.claims.Inc()
	}
	return true
}

// start pushes entries. The reply that announces the claim is sent before.
func (cl *claim) start() {
	cl.mu.Lock()
	cl.started = true
	cl.channel.Profile, cl.channel.Offer = nil, nil // the runtime has them
	cl.mu.Unlock()
	cl.Wake()
}

// stop ends the claim on this connection. The store keeps it.
func (cl *claim) stop() {
	cl.timer.Stop()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.stopped = true
	cl.channel.Abandon()
}

// remove removes a claim. It returns false if the connection does not have it.
func (c *Conn) remove(cl *claim) bool {
	c.mu.Lock()
	had := c.claims[cl.id] == cl
	if had {
		delete(c.claims, cl.id)
		c.service.claims.Dec()
	}
	c.mu.Unlock()
	cl.stop()
	if had {
		c.calls.Drop(c.ctx, c.id, cl.id)
	}
	return had
}

// find returns the connection's claim on a channel.
func (c *Conn) find(channelID string) (*claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.claims[channelID]; cl != nil {
		return cl, nil
	}
	return nil, errNotClaimed
}

// current returns the channel, which recover replaces.
func (cl *claim) current() *calls.Channel {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.channel
}

// on runs an operation on a claimed channel. If the store has lost data, the channel is
// claimed again and the operation repeated.
func (c *Conn) on(ctx context.Context, channelID string, run func(*claim, *calls.Channel) error) error {
	for attempt := 1; ; attempt++ {
		cl, err := c.find(channelID)
		if err != nil {
			return err
		}
		ch := cl.current()
		if err = run(cl, ch); err == nil {
			return nil
		}
		lost := errors.Is(err, calls.ErrLost) && attempt < maxAttempts
		if err = cl.failed(ctx, ch, err); err != nil || !lost {
			return err
		}
	}
}

// failed handles an error of a claimed channel. It returns nil if the channel was claimed
// again.
func (cl *claim) failed(ctx context.Context, ch *calls.Channel, err error) error {
	switch {
	case errors.Is(err, calls.ErrClaimLost):
		cl.lose()
	case errors.Is(err, calls.ErrLost):
		return cl.recover(ctx, ch)
	}
	return err
}

// lose reports that another connection has the channel.
func (cl *claim) lose() {
	if cl.conn.remove(cl) {
		cl.conn.push(wire.Push{Event: wire.PushClaimLost, Channel: cl.id, Claim: cl.secret})
	}
}

// recover claims the channel again after the store has lost data of it, and reports the
// loss before it pushes entries again. old is the channel that failed.
func (cl *claim) recover(ctx context.Context, old *calls.Channel) error {
	cl.recovering.Lock()
	defer cl.recovering.Unlock()
	if cl.current() != old {
		return nil // another goroutine was faster
	}
	ch, err := cl.conn.calls.AttachAs(ctx, cl.request(), cl.id)
	switch {
	case errors.Is(err, calls.ErrNotFound), errors.Is(err, calls.ErrClaimed), errors.Is(err, calls.ErrEnded):
		cl.lose()
		return err
	case err != nil:
		return err
	}
	ch.Profile, ch.Offer = nil, nil
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.stopped {
		ch.Abandon()
		return calls.ErrClosed
	}
	old.Abandon()
	cl.channel, cl.committed, cl.pushed, cl.bytes = ch, wire.EntryNumber(ch.Committed), nil, 0
	cl.pushLost()
	return nil
}

// pushLost reports a loss of data. The caller holds mu.
func (cl *claim) pushLost() {
	cl.conn.push(wire.Push{Event: wire.PushLost, Channel: cl.id, At: cl.channel.LostAt.UnixMilli()})
}

// Wake implements calls.Watcher: it makes a worker push entries.
func (cl *claim) Wake() {
	c := cl.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.claims[cl.id] != cl:
	case cl.working:
		cl.woken = true
	case !cl.queued:
		c.makeReady(cl)
	}
}

// makeReady queues a claim for a worker. The caller holds mu.
func (c *Conn) makeReady(cl *claim) {
	cl.queued = true
	c.ready = append(c.ready, cl)
	if c.workers < maxWorkers {
		c.workers++
		c.running.Go(c.pushReady)
	}
}

// Audio implements calls.Watcher.
func (cl *claim) Audio(message string) {
	cl.mu.Lock()
	ok := cl.started && !cl.stopped
	cl.mu.Unlock()
	if ok {
		cl.conn.socket.SendAudio([]byte(`{"event":"audio","channel":"` + cl.id + `","message":` + message + `}`))
	}
}

// pushReady pushes the entries of claims that are ready until there are none.
func (c *Conn) pushReady() {
	for {
		c.mu.Lock()
		if len(c.ready) == 0 || c.closed {
			c.workers--
			c.mu.Unlock()
			return
		}
		cl := c.ready[0]
		c.ready = c.ready[1:]
		cl.queued, cl.woken = false, false
		if c.unsent > pauseBytes {
			c.stalled = append(c.stalled, cl)
			c.mu.Unlock()
			c.socket.AfterWrites(c.resumePushes)
			continue
		}
		cl.working = true
		c.mu.Unlock()

		again := cl.pushEntries()

		c.mu.Lock()
		cl.working = false
		switch {
		case c.closed || c.claims[cl.id] != cl:
		case cl.woken || again <= 0:
			c.makeReady(cl)
		default:
			cl.timer.Reset(again)
		}
		c.mu.Unlock()
	}
}

// resumePushes continues when the socket has sent everything.
func (c *Conn) resumePushes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = 0
	if c.closed {
		return
	}
	for _, cl := range c.stalled {
		if !cl.queued && !cl.working {
			c.makeReady(cl)
		}
	}
	c.stalled = nil
}

// pushEntries pushes entries as far as uncommitted ones allow. It returns the time after
// which to call it again.
func (cl *claim) pushEntries() (again time.Duration) {
	cl.mu.Lock()
	ch, entries, bytes := cl.channel, pushedEntries-len(cl.pushed), pushedBytes-cl.bytes
	ok, empty := cl.started && !cl.stopped, len(cl.pushed) == 0
	cl.mu.Unlock()
	if !ok {
		return time.Hour
	}
	ctx, cancel := context.WithTimeout(cl.conn.ctx, pollTimeout)
	defer cancel()
	found, again, err := ch.Poll(ctx, min(entries, pollBatch), bytes, empty)
	if err != nil {
		if cl.failed(ctx, ch, err) == nil {
			return 0
		}
		return pollRetry
	}
	cl.mu.Lock()
	current, sent := cl.channel == ch && !cl.stopped, int64(0)
	for _, d := range found {
		if !current {
			break
		}
		size := int64(len(d.JSON))
		cl.pushed = append(cl.pushed, pushedEntry{d.Position, size})
		cl.bytes += size
		sent += cl.conn.pushEntry(cl.id, d)
	}
	cl.mu.Unlock()
	cl.conn.mu.Lock()
	cl.conn.unsent += sent
	cl.conn.mu.Unlock()
	if !current {
		return 0 // claimed again meanwhile
	}
	return again
}

// pushEntry sends an entry. It returns the size of the frame.
func (c *Conn) pushEntry(channelID string, d calls.Delivery) int64 {
	frame := make([]byte, 0, len(d.JSON)+len(channelID)+100)
	frame = append(frame, `{"event":"entry","channel":"`...)
	frame = append(frame, channelID...)
	frame = append(frame, `","position":"`...)
	frame = append(frame, d.Position...)
	frame = append(frame, `","entry":`...)
	frame = append(frame, d.JSON...)
	frame = append(frame, '}')
	if !c.socket.Send(frame) {
		c.socket.Close(channel.CloseSlowReader)
	}
	return int64(len(frame))
}

// commit marks pushed entries as handled.
func (cl *claim) commit(ctx context.Context, ch *calls.Channel, position string) error {
	cl.mu.Lock()
	number := wire.EntryNumber(position)
	i := slices.IndexFunc(cl.pushed, func(p pushedEntry) bool { return p.position == position })
	done := number > 0 && number <= cl.committed
	cl.mu.Unlock()
	switch {
	case done:
		return nil
	case i < 0:
		return errPosition
	}
	if err := ch.Commit(ctx, position); err != nil {
		return err
	}
	cl.mu.Lock()
	if cl.channel == ch {
		cl.committed = number
		for len(cl.pushed) > 0 && wire.EntryNumber(cl.pushed[0].position) <= number {
			cl.bytes -= cl.pushed[0].bytes
			cl.pushed = cl.pushed[1:]
		}
		if len(cl.pushed) == 0 {
			cl.pushed = nil
		}
	}
	cl.mu.Unlock()
	if ch.Ended() {
		cl.conn.remove(cl)
	} else {
		cl.Wake()
	}
	return nil
}

// claimed returns the reply that announces a claim.
func (cl *claim) claimed(ctx context.Context, ch *calls.Channel) (wire.Claimed, error) {
	items, err := openItems(ctx, ch)
	claimed := wire.Claimed{
		Channel: ch.ID, Claim: cl.secret, Team: ch.TeamID, Endpoint: ch.EndpointID, Mode: ch.Mode, CallID: ch.CallID, TransactionID: ch.TransactionID,
		Session: ch.Offer, Position: ch.Committed, WorkItems: items, LostAt: lostAt(ch),
	}
	if len(ch.Profile) > 0 {
		claimed.Profile = ch.Profile
	}
	return claimed, err
}

func lostAt(ch *calls.Channel) int64 {
	if ch.LostAt.IsZero() {
		return 0
	}
	return ch.LostAt.UnixMilli()
}

func openItems(ctx context.Context, ch *calls.Channel) (list []wire.OpenWorkItem, err error) {
	items, err := ch.WorkItems(ctx)
	for _, item := range items {
		scope := wire.ScopeItem
		if item.Scope == calls.ScopeChannel {
			scope = wire.ScopeChannel
		}
		list = append(list, wire.OpenWorkItem{WorkItemID: item.ID, Kind: item.Kind, Scope: scope, Deadline: item.ExpiresAt.UnixMilli(), Parked: item.Parked})
	}
	return list, err
}

// restore records the claims again after another instance took the connection for dead,
// and checks whether they still exist.
func (c *Conn) restore(ctx context.Context) {
	c.mu.Lock()
	var ids []string
	var claims []*claim
	for id, cl := range c.claims {
		ids, claims = append(ids, id), append(claims, cl)
	}
	c.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_ = c.calls.Hold(ctx, c.id, ids...) // otherwise the claims expire with their lease
	for _, cl := range claims {
		cl.current().Check()
	}
}
