package runtimeapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
)

// maxAttempts is how often a request is run if the store loses data.
const maxAttempts = 3

// claim is a channel that a connection has claimed. While nothing happens, it needs no
// goroutine.
type claim struct {
	conn   *Conn
	id     string // of the channel
	secret string
	timer  *time.Timer // calls Wake when the claim has to be renewed, or at the channel's next deadline

	// Used by the goroutine of the requests only.
	failure    error  // of a request; later ones fail too until the runtime repeats it
	alsoCommit string // position that the running request commits too; empty: none

	token string // for the next attempts to recover the claim; used by one recovery at a time

	// Guarded by conn.mu.
	queued, working, woken bool

	mu        sync.Mutex
	started   bool // the reply is sent, so that entries may follow
	stopped   bool
	ended     bool // the last entry is pushed
	channel   *calls.Channel
	known     string        // position of the newest entry that the runtime has; empty: none
	committed int64         // number of the entry
	pushed    []pushedEntry // and not committed
	bytes     int64         // of them
}

type pushedEntry struct{ number, bytes int64 }

func (c *Conn) newClaim(channelID, secret string) *claim {
	cl := &claim{conn: c, id: channelID, secret: secret}
	cl.timer = time.AfterFunc(time.Hour, cl.Wake)
	cl.timer.Stop() // Reset starts it
	return cl
}

// record returns how the store lists the claim.
func (cl *claim) record() string { return cl.id + "/" + cl.secret }

func records(claims map[string]*claim) (list []string) {
	for _, cl := range claims {
		list = append(list, cl.record())
	}
	return list
}

// recordClaims records claims that the connection is about to make. If the runtime has another
// connection, which should get the sessions, it closes this one.
func (c *Conn) recordClaims(ctx context.Context, list ...string) error {
	err := c.calls.RecordClaims(ctx, c.id, list...)
	if errors.Is(err, calls.ErrReplaced) {
		c.withdrawAccepts() // the socket may be closed later
		c.socket.Close(channel.CloseReplaced)
	}
	return err
}

// attempt describes an attempt to claim the channel.
func (cl *claim) attempt() calls.Claim {
	return calls.Claim{Name: cl.conn.name + "/" + cl.secret, Token: cl.conn.id + "/" + rand.Text()[:tokenSuffix], Watcher: cl}
}

// recoveryAttempt is attempt for a channel that is claimed again. The token stays the same until
// that succeeds, since the reply to an attempt may be lost.
func (cl *claim) recoveryAttempt() calls.Claim {
	attempt := cl.attempt()
	cl.token = cmp.Or(cl.token, attempt.Token)
	attempt.Token = cl.token
	return attempt
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
		c.service.claimGauge.Inc()
	}
	return true
}

// announce replies with a claim and starts to push its entries.
func (c *Conn) announce(ctx context.Context, id int64, cl *claim, ch *calls.Channel) error {
	reply, err := cl.claimed(ctx, ch)
	if err == nil && !c.add(cl, ch) {
		err = calls.ErrClosed
	}
	if err != nil {
		ch.Undo()
		return err
	}
	c.reply(id, reply, nil)
	cl.start()
	return nil
}

// start pushes the claim's entries. Its caller has sent the reply that announces the claim. A loss
// that was found when the claim was resumed is reported first.
func (cl *claim) start() {
	cl.mu.Lock()
	if cl.channel.Lost {
		cl.pushLost()
	}
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
		c.service.claimGauge.Dec()
	}
	c.mu.Unlock()
	cl.stop()
	if had {
		c.calls.ForgetClaim(c.ctx, c.id, cl.record())
	}
	return had
}

// isNamedBy reports whether a request is about this claim, rather than a former one.
func (cl *claim) isNamedBy(r wire.Request) bool { return r.Claim == "" || r.Claim == cl.secret }

// find returns the connection's claim on a channel, if it is the one that the request names.
func (c *Conn) find(r wire.Request) (*claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl := c.claims[r.Channel]; cl != nil && cl.isNamedBy(r) {
		return cl, nil
	}
	return nil, errNotClaimed
}

// current returns the channel, which claimAgain replaces.
func (cl *claim) current() *calls.Channel {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.channel
}

// withClaim runs an operation on a claimed channel. If the store has lost data, the channel is
// claimed again and the operation repeated.
func (c *Conn) withClaim(r wire.Request, run func(*claim, *calls.Channel) error) error {
	for attempt := 1; ; attempt++ {
		cl, err := c.find(r)
		if err != nil {
			return err
		}
		ch := cl.current()
		if err = run(cl, ch); err == nil {
			return nil
		}
		if err := cl.recoverFrom(ch, err); err != nil {
			return err
		}
		if attempt == maxAttempts {
			return calls.ErrUnavailable
		}
	}
}

// recoverFrom claims the channel again if an operation on ch has failed because the store lost
// data of it. It returns nil if the operation can be repeated, and otherwise its error.
func (cl *claim) recoverFrom(ch *calls.Channel, err error) error {
	lost, claimLost := errors.Is(err, calls.ErrLost), errors.Is(err, calls.ErrClaimLost)
	if !lost && !claimLost {
		return err
	}
	_, err, _ = cl.conn.recoveries.Do(cl.record(), func() (any, error) { // for all operations that fail at the same time
		ctx, cancel := context.WithTimeout(cl.conn.ctx, requestTimeout) // the first of them may have no time left
		defer cancel()
		switch {
		case cl.current() != ch: // this connection has claimed the channel again since
			return nil, nil
		case claimLost && !errors.Is(ch.CheckLoss(ctx), calls.ErrLost):
			cl.lose()
			return nil, err
		}
		return nil, cl.claimAgain(ctx, ch)
	})
	return err
}

// lose reports that another connection has the channel.
func (cl *claim) lose() {
	if cl.conn.remove(cl) {
		cl.conn.push(wire.Push{Event: wire.PushClaimLost, Channel: cl.id, Claim: cl.secret})
	}
}

// claimAgain claims the channel again and reports the loss before it pushes entries again. old is
// the channel that failed.
func (cl *claim) claimAgain(ctx context.Context, old *calls.Channel) error {
	ch, err := cl.conn.calls.Recover(ctx, cl.recoveryAttempt(), old)
	if errors.Is(err, calls.ErrClaimLost) && errors.Is(old.CheckLoss(ctx), calls.ErrLost) { // the store has lost this claim, and has an older one again
		ch, err = cl.conn.calls.Recover(ctx, cl.recoveryAttempt(), old)
	}
	if calls.IsGone(err) {
		cl.lose()
		return errNotClaimed.WithCause(err)
	}
	if err != nil {
		return err
	}
	ch.Profile, ch.Offer, cl.token = nil, nil, ""
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.stopped {
		ch.Abandon()
		return calls.ErrClosed
	}
	old.Abandon()
	cl.channel, cl.committed = ch, wire.EntryNumber(ch.Committed)
	cl.known, cl.pushed, cl.bytes, cl.ended = "", nil, 0, false
	cl.pushLost()
	return nil
}

// pushLost reports a loss of data. The caller holds mu.
func (cl *claim) pushLost() {
	cl.conn.push(wire.Push{Event: wire.PushLost, Channel: cl.id, At: cl.channel.LostAt.UnixMilli()})
}

// commit marks entries as handled.
func (cl *claim) commit(ctx context.Context, ch *calls.Channel, position string) error {
	number := wire.EntryNumber(position)
	cl.mu.Lock()
	done, known := number <= cl.committed, cl.known
	cl.mu.Unlock()
	switch {
	case done:
		return nil
	case number > wire.EntryNumber(known):
		return errPosition
	}
	err := ch.Commit(ctx, position)
	if errors.Is(err, calls.ErrUnknownPosition) { // it is wrong, unless the store has lost what the runtime has
		err = ch.CheckEntry(ctx, known)
		if err == nil {
			err = errPosition
		}
	}
	if err == nil {
		cl.committedTo(ch, position)
	}
	return err
}

// committedTo notes that entries are committed. An empty position is ignored.
func (cl *claim) committedTo(ch *calls.Channel, position string) {
	number := wire.EntryNumber(position)
	if number == 0 {
		return
	}
	cl.mu.Lock()
	if cl.channel == ch {
		cl.committed = max(cl.committed, number)
		for len(cl.pushed) > 0 && cl.pushed[0].number <= number {
			cl.bytes -= cl.pushed[0].bytes
			cl.pushed = cl.pushed[1:]
		}
		if len(cl.pushed) == 0 {
			cl.pushed = nil // frees the array
		}
	}
	cl.mu.Unlock()
	if ch.Ended() {
		cl.conn.remove(cl)
	} else {
		cl.Wake()
	}
}

// claimed returns the reply that announces a claim.
func (cl *claim) claimed(ctx context.Context, ch *calls.Channel) (wire.Claimed, error) {
	items, err := ch.WorkItems(ctx)
	claimed := wire.Claimed{
		Channel: ch.ID, Claim: cl.secret, Team: ch.TeamID, Endpoint: ch.EndpointID, Mode: ch.Mode, CallID: ch.CallID, TransactionID: ch.TransactionID,
		Session: ch.Offer, Position: ch.Committed, WorkItems: items, LostAt: lostAt(ch),
	}
	if len(ch.Profile) > 0 { // an empty value cannot be encoded
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

// restore records the claims again after another instance took the connection for dead,
// and checks whether they still exist.
func (c *Conn) restore(ctx context.Context) {
	c.mu.Lock()
	claims := maps.Clone(c.claims)
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_ = c.recordClaims(ctx, records(claims)...) // otherwise the claims expire with their lease
	for _, cl := range claims {
		cl.current().Check()
	}
}
