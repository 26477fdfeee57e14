package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/harness"
)

// runtimeNode is a place where a call runtime runs, crashes and starts again
// under the same name.
type runtimeNode struct {
	world *world
	name  string

	mu      sync.Mutex
	process *runtimeProcess // nil while it is down
	starts  int
}

// runtimeProcess is one process of a call runtime.
type runtimeProcess struct {
	node    *runtimeNode
	world   *world
	host    *host
	client  *callruntime.Runtime
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (n *runtimeNode) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process != nil {
		return
	}
	n.starts++
	w := n.world
	w.trace(n.name, "starts")
	p := &runtimeProcess{node: n, world: w, host: newHost(w, w.processName(n.name, n.starts))}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	n.process = p
	p.running.Go(p.run)
}

func (n *runtimeNode) current() *runtimeProcess {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

func (n *runtimeNode) crash(effect bool) {
	n.mu.Lock()
	p := n.process
	n.process = nil
	n.mu.Unlock()
	if p == nil {
		return
	}
	n.world.trace(n.name, "crashes (effect: %v)", effect)
	p.host.crash(effect)
	n.world.ledger.runtimeCrashed(p)
	n.world.running.Go(p.close)
}

// stop ends the process gracefully.
func (n *runtimeNode) stop() {
	n.mu.Lock()
	p := n.process
	n.process = nil
	n.mu.Unlock()
	if p != nil {
		n.world.trace(n.name, "stops")
		n.world.running.Go(p.close)
	}
}

func (p *runtimeProcess) close() {
	p.cancel()
	p.running.Wait()
	if p.client != nil {
		p.client.Close()
	}
	p.host.crash(true)
}

func (p *runtimeProcess) run() {
	client, err := callruntime.New(callruntime.Options{URL: "http://127.0.0.1", Key: "tk_simulation", Name: p.node.name, Dial: p.host.dialInstance, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err) // only for wrong options
	}
	p.client = client
	rng := p.world.rng("accept", p.host.name)
	for p.ctx.Err() == nil {
		var accept wire.Accept
		if rng.IntN(2) == 0 {
			accept.AwaitChat = &wire.AwaitChat{Kind: wire.WorkItemKinds[rng.IntN(2)], TTLMs: new(4000 + rng.Int64N(10_000))} // of a bot or an LLM
		}
		c, err := client.Accept(p.ctx, accept)
		if err != nil {
			if p.ctx.Err() == nil {
				p.world.ledger.violation("%s: accept: %v", p.host.name, err)
			}
			return
		}
		r := p.world.ledger.channel(c.ID)
		p.running.Go(func() { p.work(r, c) })
	}
}

// otherError is an error that no operation should return.
const otherError = "other error"

// reason returns the short cause of an error, for traces that must not contain
// random IDs.
func reason(err error) string {
	for _, known := range []error{
		callruntime.ErrNotFound, callruntime.ErrNotFound, callruntime.ErrLost, callruntime.ErrEnded, callruntime.ErrClaimed,
		callruntime.ErrClaimLost, callruntime.ErrClosed, callruntime.ErrWorkItemExists, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return otherError
}

// claimedChannel is a channel of a runtime, from the claim to its end. It implements
// harness.Call.
type claimedChannel struct {
	*callruntime.Channel
	process     *runtimeProcess
	record      *channelRecord
	rng         *rand.Rand // of talk
	receiving   *rand.Rand // of Handle
	ctx         context.Context
	leave       context.CancelFunc
	claim       string // its name in the store
	from        time.Time
	until       time.Time        // zero while it lasts
	last        string           // position of the last delivery
	afterLoss   bool             // the next delivery can have any position
	lost        chan struct{}    // holds a value after a loss
	nudged      chan struct{}    // holds a value if it should send a message now
	interrupted chan *itemRecord // to cancel now
	uncommitted int
	number      int
}

// work serves a channel until the claim is lost, the channel ends or the process
// crashes.
func (p *runtimeProcess) work(r *channelRecord, c *callruntime.Channel) {
	t := &claimedChannel{Channel: c, process: p, record: r, from: time.Now(), last: c.Position, lost: make(chan struct{}, 1), nudged: make(chan struct{}, 1), interrupted: make(chan *itemRecord, 1)}
	t.ctx, t.leave = context.WithCancel(p.ctx)
	t.number = r.claimed(t)
	if claim := p.world.audit.claimOf(r.id); claim != nil {
		t.claim = claim.name
	}
	p.world.trace(p.host.name, "accepts %s (claim %d)", r.name, t.number)
	r.lostBeforeClaim(c.LostAt)
	t.rng = p.world.rng("tenure", r.name, t.number) // another word would change the runs of all seeds
	t.receiving = p.world.rng("receive", r.name, t.number)
	var talking sync.WaitGroup
	talking.Go(func() {
		if t.number > 1 {
			t.awaitAgain(c.WorkItems, c.LostAt > 0)
		}
		t.talk()
	})
	err := harness.RunCall(t.ctx, c, t)
	if p.ctx.Err() == nil {
		p.world.trace(p.host.name, "leaves %s: %s", r.name, reason(err))
		switch {
		case errors.Is(err, callruntime.ErrClaimLost):
			r.claimLost(t)
		case !errors.Is(err, callruntime.ErrEnded):
			r.violation("claim %d ended with %v", t.number, err)
		}
	}
	t.leave()
	talking.Wait()
	r.claimEnded(t)
}

// Handle records an entry. It commits every few entries.
func (t *claimedChannel) Handle(_ context.Context, d callruntime.Delivery) (commit bool, err error) {
	if d.Position == "" {
		return false, nil
	}
	t.record.delivered(t, d)
	if d.WorkItem != nil {
		t.ask(*d.WorkItem)
	}
	if t.uncommitted++; t.uncommitted < 1+t.receiving.IntN(4) && d.Entry.Kind != wire.KindChannelEnded {
		return false, nil
	}
	t.uncommitted = 0
	return true, nil
}

// Lost makes talk await work items again.
func (t *claimedChannel) Lost(context.Context) error {
	t.process.world.trace(t.process.host.name, "is notified of a loss on %s", t.record.name)
	t.record.runtimeNotified()
	t.afterLoss = true
	select {
	case t.lost <- struct{}{}:
	default:
	}
	return nil
}

// failed traces the error of an operation and reports whether the claim has ended.
func (t *claimedChannel) failed(operation string, err error) (done bool) {
	if t.ctx.Err() != nil {
		return true
	}
	t.process.world.trace(t.process.host.name, "%s on %s: %s", operation, t.record.name, reason(err))
	if reason(err) == otherError {
		t.record.violation("%s: %v", operation, err)
		return true
	}
	return errors.Is(err, callruntime.ErrClaimLost) || errors.Is(err, callruntime.ErrEnded) || errors.Is(err, callruntime.ErrClosed)
}

// nudgedQuiet is how long a runtime that was nudged sends nothing more, so that no later message
// makes up for one that did not arrive.
const nudgedQuiet = 15 * time.Second

// nudge makes the runtime send a message now.
func (r *channelRecord) nudge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active != nil {
		select {
		case r.active.nudged <- struct{}{}:
		default:
		}
	}
}

// runtime returns the process that has the channel; nil if there is none.
func (r *channelRecord) runtime() *runtimeProcess {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active == nil {
		return nil
	}
	return r.active.process
}

// talk sends messages and awaits results until the claim ends.
func (t *claimedChannel) talk() {
	var quietUntil time.Time
	for t.ctx.Err() == nil {
		select {
		case <-time.After(max(time.Until(quietUntil), 200*time.Millisecond+time.Duration(t.rng.Int64N(int64(t.process.world.pace))))):
		case <-t.lost:
			t.awaitAgain(nil, true)
		case <-t.nudged:
			t.send()
			quietUntil = time.Now().Add(nudgedQuiet)
			continue
		case item := <-t.interrupted:
			t.cancel(item)
			continue
		case <-t.ctx.Done():
			return
		}
		if t.process.world.faultsEnded() {
			continue
		}
		switch n := t.rng.IntN(10); {
		case n < 6:
			t.send()
		case n < 9:
			t.await()
		default:
			t.cancel(t.record.itemToCancel())
		}
	}
}

// maxBatch is the maximum number of messages of one call.
const maxBatch = 64

// padding returns up to 60 KiB of text, mostly none.
func padding(rng *rand.Rand) string {
	switch n := rng.IntN(40); {
	case n == 0:
		return strings.Repeat("x", rng.IntN(60<<10))
	case n < 5:
		return strings.Repeat("x", rng.IntN(4<<10))
	default:
		return ""
	}
}

// send sends messages until the outcome is known. Those without an ID are sent once.
func (t *claimedChannel) send() {
	count, hasIDs := 1, t.rng.IntN(3) > 0
	if t.rng.IntN(8) == 0 {
		count += t.rng.IntN(maxBatch)
	}
	var sends []*sendRecord
	var messages []wire.ChannelMessage
	for range count {
		s := t.record.newSend()
		m := wire.ChannelMessage{Type: wire.TypeChat, Chat: fmt.Appendf(nil, `{"text":"%s","padding":"%s"}`, s.id, padding(t.rng))}
		if hasIDs {
			m.MessageID = uuid.NewSHA1(uuid.Nil, []byte(s.id)).String()
		}
		sends, messages = append(sends, s), append(messages, m)
	}
	for t.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second+time.Duration(t.rng.Int64N(int64(4*time.Second))))
		err := t.Send(ctx, messages...)
		cancel()
		if err == nil {
			t.record.sendAcknowledged(sends, t)
			return
		}
		if t.failed("send", err) || !hasIDs {
			return
		}
	}
}
