package simulation

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/redisconn"
)

// claimLease of the runtimes. It is shorter than the default, so that claims
// expire within a run.
const claimLease = 9 * time.Second

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
	client  *calls.Runtime
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

func (p *runtimeProcess) close() {
	p.cancel()
	p.running.Wait()
	if p.client != nil {
		p.client.Close()
	}
	p.host.crash(true)
}

func (p *runtimeProcess) run() {
	option := redisconn.ClientOption(config.RedisOptions{Addrs: []string{"store:6379"}, Embedded: true})
	option.DialCtxFn = func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return p.host.dial(ctx)
	}
	if p.client = p.connect(option); p.client == nil {
		return
	}
	for _, r := range p.world.ledger.channels {
		if r.claimedBy() == p.node.name {
			p.running.Go(func() { p.attach(r) })
		}
	}
	for p.ctx.Err() == nil {
		c, err := p.client.Accept(p.ctx, nil)
		if err != nil {
			if p.ctx.Err() == nil {
				p.world.trace(p.host.name, "accept: %s", reason(err))
			}
			p.pause(500 * time.Millisecond)
			continue
		}
		r := p.world.ledger.channel(c.ID)
		p.running.Go(func() { p.work(r, c, "accepts") })
	}
}

func (p *runtimeProcess) connect(option rueidis.ClientOption) *calls.Runtime {
	for p.ctx.Err() == nil {
		client, err := calls.New(calls.Options{Store: option, Name: p.node.name, Lease: claimLease})
		if err == nil {
			return client
		}
		p.pause(300 * time.Millisecond)
	}
	return nil
}

func (p *runtimeProcess) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.ctx.Done():
	}
}

// attach claims a channel that this runtime had before, and works on it.
func (p *runtimeProcess) attach(r *channelRecord) {
	for p.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
		r.attaching(p, 1)
		c, err := p.client.Attach(ctx, r.id)
		r.attaching(p, -1)
		cancel()
		switch {
		case err == nil:
			p.work(r, c, "attaches to")
			return
		case errors.Is(err, calls.ErrNotFound), errors.Is(err, calls.ErrLost):
			p.world.trace(p.host.name, "attach to %s: lost", r.name)
			r.runtimeNotified(p)
			return
		case errors.Is(err, calls.ErrClaimed), errors.Is(err, calls.ErrClosed):
			p.world.trace(p.host.name, "attach to %s: %s", r.name, reason(err))
			return
		}
		p.pause(500 * time.Millisecond)
	}
}

// reason returns the short cause of an error, for traces that must not contain
// random IDs.
func reason(err error) string {
	for _, known := range []error{
		calls.ErrNotFound, calls.ErrLost, calls.ErrEnded, calls.ErrClaimed, calls.ErrClaimLost, calls.ErrUnknownPosition,
		calls.ErrClosed, calls.ErrWorkItemNotFound, calls.ErrWorkItemExists, context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "other error"
}

// claimedChannel is a channel of a runtime, from the claim to its end.
type claimedChannel struct {
	*calls.Channel
	process *runtimeProcess
	record  *channelRecord
	rng     *rand.Rand // of talk
	ctx     context.Context
	leave   context.CancelFunc
	from    time.Time
	until   time.Time // zero while it lasts
	last    string    // position of the last delivery
	number  int
}

// work serves a channel until the claim is lost, the channel ends or the process
// crashes.
func (p *runtimeProcess) work(r *channelRecord, c *calls.Channel, how string) {
	t := &claimedChannel{Channel: c, process: p, record: r, from: time.Now(), last: c.Committed}
	t.ctx, t.leave = context.WithCancel(p.ctx)
	t.number = r.claimed(t)
	p.world.trace(p.host.name, "%s %s (claim %d)", how, r.name, t.number)
	t.rng = p.world.rng("tenure", r.name, t.number) // another word would change the runs of all seeds
	var talking sync.WaitGroup
	talking.Go(func() {
		if t.number > 1 {
			t.awaitAgain()
		}
		t.talk()
	})
	again := t.receive()
	t.leave()
	talking.Wait()
	r.claimEnded(t)
	if again && p.ctx.Err() == nil {
		p.attach(r)
	}
}

// receive handles entries and commits them. It reports whether to attach again.
func (t *claimedChannel) receive() (again bool) {
	uncommitted, rng := 0, t.process.world.rng("receive", t.record.name, t.number)
	for t.ctx.Err() == nil {
		d, err := t.Receive(t.ctx)
		if err != nil {
			if done, again := t.failed("receive", err); done {
				return again
			}
			t.process.pause(200 * time.Millisecond)
			continue
		}
		if d.Position == "" {
			continue
		}
		t.record.delivered(t, d)
		ended := d.Entry.Kind == wire.KindChannelEnded
		if uncommitted++; uncommitted < 1+rng.IntN(4) && !ended {
			continue
		}
		uncommitted = 0
		ctx, cancel := context.WithTimeout(t.ctx, 4*time.Second)
		err = t.Commit(ctx, d.Position)
		cancel()
		if err == nil {
			t.record.committed(d.Position)
		} else if done, again := t.failed("commit", err); done {
			return again
		}
	}
	return false
}

// failed handles an error of an operation. done reports that the claim has ended.
func (t *claimedChannel) failed(operation string, err error) (done, again bool) {
	if t.ctx.Err() != nil {
		return true, t.record.wasNotified(t)
	}
	t.process.world.trace(t.process.host.name, "%s on %s: %s", operation, t.record.name, reason(err))
	switch {
	case errors.Is(err, calls.ErrLost), errors.Is(err, calls.ErrUnknownPosition):
		t.record.runtimeNotified(t.process)
		t.record.markNotified(t)
		t.leave()
		return true, true
	case errors.Is(err, calls.ErrClaimLost):
		t.record.claimLost(t)
		t.leave()
		return true, false
	case errors.Is(err, calls.ErrEnded), errors.Is(err, calls.ErrClosed):
		t.leave()
		return true, false
	}
	return false, false
}

// talk sends messages and awaits results until the claim ends.
func (t *claimedChannel) talk() {
	for t.ctx.Err() == nil {
		select {
		case <-time.After(200*time.Millisecond + time.Duration(t.rng.Int64N(int64(2500*time.Millisecond)))):
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
			t.cancel()
		}
	}
}

// send sends a message until its outcome is known.
func (t *claimedChannel) send() {
	s := t.record.newSend()
	for t.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second+time.Duration(t.rng.Int64N(int64(4*time.Second))))
		err := t.Send(ctx, wire.ChannelMessage{Type: wire.TypeChat, MessageID: s.id, Chat: fmt.Appendf(nil, `{"text":"%s"}`, s.id)})
		cancel()
		if err == nil {
			t.record.sendAcknowledged(s, t)
			return
		}
		if done, _ := t.failed("send", err); done {
			return
		}
	}
}
