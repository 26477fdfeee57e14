// Package callruntime is the call runtime's side of the service: it takes
// sessions that browsers open, reads what happens on their channels, answers,
// awaits what bots, models and tools have to say, and ends them. The two meet in
// the key-value store alone, by the scripts of package lua, which a runtime in
// another language can run as well.
//
// A channel's stream is read in order and at the runtime's own pace. What the
// runtime has dealt with it commits; one that is started again, or that takes
// over from one that died, reads on from there.
package callruntime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/internal/pubsub"
)

// What a channel can be refused for.
var (
	ErrLost            = errors.New("the store does not know the channel, or has lost a part of it")
	ErrEnded           = errors.New("the channel has ended")
	ErrOtherTeam       = errors.New("the channel is another team's or endpoint's")
	ErrClaimed         = errors.New("another runtime has the channel")
	ErrClaimLost       = errors.New("the claim of the channel is lost")
	ErrUnknownPosition = errors.New("the position is not on the stream")
	ErrClosed          = errors.New("the channel, or its runtime, is closed")

	ErrWorkItemNotFound = errors.New("the channel awaits no such work item")
	ErrWorkItemExists   = errors.New("the channel has another work item of this id")
)

var refusals = map[string]error{
	"lost": ErrLost, "ended": ErrEnded, "foreign": ErrOtherTeam, "taken": ErrClaimed, "claim_lost": ErrClaimLost, "unknown": ErrUnknownPosition,
	"no_item": ErrWorkItemNotFound, "exists": ErrWorkItemExists,
}

// Options say where the store is and who asks.
type Options struct {
	// Store is where the service's store is; see Locate.
	Store rueidis.ClientOption
	// Name tells this runtime from others, and stays when it is started again.
	Name string
	// Group shares the offers among its members, each of which takes any of
	// them; default OffersGroup. Runtimes that pick and choose form a group of
	// their own: each group sees every session that nobody has taken.
	Group string
	// Lease is how long a claim outlives its runtime; default 15 s.
	Lease time.Duration
	// Limits of the channels that Open opens; default DefaultChannelLimits.
	Limits wire.ChannelLimits
}

// Runtime is a call runtime's access to the store. Its methods may be called
// from any goroutine. While the store is away they wait for it until their
// context ends, or Close is called.
type Runtime struct {
	opts    Options
	client  rueidis.Client
	topics  *pubsub.Hub
	life    context.Context // ends with Close
	stop    context.CancelCauseFunc
	ending  sync.Mutex // held while life ends, and while what Close waits for is begun
	running sync.WaitGroup
	// Each of these may run twice when its answer is lost: a second run does
	// nothing.
	claim, commit, send, end, await, cancel, touch *rueidis.Lua
}

// New connects to the store.
func New(opts Options) (*Runtime, error) {
	if opts.Name == "" {
		return nil, errors.New("a runtime needs a name")
	}
	if opts.Group == "" {
		opts.Group = kv.OffersGroup
	}
	if opts.Lease == 0 {
		opts.Lease = 15 * time.Second
	}
	if opts.Limits == (wire.ChannelLimits{}) {
		opts.Limits = wire.DefaultChannelLimits()
	}
	opts.Store.DisableCache = true
	opts.Store.PipelineMultiplex = -1 // one connection: what is under way together shares its reads and writes
	opts.Store.RetryDelay = retryDelay
	client, err := rueidis.NewClient(opts.Store)
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	life, stop := context.WithCancelCause(context.Background())
	r := &Runtime{
		opts: opts, client: client, topics: pubsub.New(), life: life, stop: stop,
		claim:  rueidis.NewLuaScriptRetryable(lua.Channel("claim")),
		commit: rueidis.NewLuaScriptRetryable(lua.Channel("commit")),
		send:   rueidis.NewLuaScriptRetryable(lua.FastChannel("send")),
		end:    rueidis.NewLuaScriptRetryable(lua.Channel("end")),
		await:  rueidis.NewLuaScriptRetryable(lua.Channel("await")),
		cancel: rueidis.NewLuaScriptRetryable(lua.Channel("cancel")),
		touch:  rueidis.NewLuaScriptRetryable(lua.Channel("touch")),
	}
	r.running.Go(func() { r.listen(life) })
	return r, nil
}

// retryDelay grows to a second. The command is pinned: the writer of the lost
// connection may still read it while the client, done with the retry, would
// reuse its memory.
func retryDelay(attempts int, cmd rueidis.Completed, _ error) time.Duration {
	cmd.Pin()
	return min(time.Second, time.Millisecond<<min(attempts, 10))
}

// Close lets go of the store; Accept and Receive, if they wait, fail with
// ErrClosed. Claims run out by themselves; those of channels that were closed
// before are free at once.
func (r *Runtime) Close() {
	r.ending.Lock()
	r.stop(ErrClosed)
	r.ending.Unlock()
	r.running.Wait()
	r.client.Close()
}

func (r *Runtime) listen(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = 5 * time.Second
	for ctx.Err() == nil {
		if served, _ := r.topics.Serve(ctx, r.client, nil); served {
			pause.Reset()
		}
		wait(ctx, pause.NextBackOff())
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// OpenOptions describe a channel that has no browser session, such as a phone
// call.
type OpenOptions struct {
	ChannelID, TeamID, EndpointID string
	Mode, CallID, TransactionID   string
	Profile                       []byte // the gatewayProfile as JSON, fixed for the channel's life
}

// Open opens a channel and claims it, or claims one that is open for the same
// team and endpoint.
func (r *Runtime) Open(ctx context.Context, o OpenOptions) (*Channel, error) {
	if !wire.ValidChannelID(o.ChannelID) {
		return nil, fmt.Errorf("%q is no channel id: up to 128 letters, digits and . _ : -", o.ChannelID)
	}
	args := append([]string{rand.Text(), o.TeamID, o.EndpointID, o.Mode, o.CallID, o.TransactionID, string(o.Profile)}, r.opts.Limits.Args()...)
	c, err := r.take(ctx, o.ChannelID, "open", args...)
	if err != nil {
		return nil, fmt.Errorf("open channel %s: %w", o.ChannelID, err)
	}
	return c, nil
}

// Attach claims a channel that exists, also one that this runtime held before
// it was started again.
func (r *Runtime) Attach(ctx context.Context, channelID string) (*Channel, error) {
	c, err := r.take(ctx, channelID, "attach")
	if err != nil {
		return nil, fmt.Errorf("attach to channel %s: %w", channelID, err)
	}
	return c, nil
}

// Observe is for onlookers: a channel that is read from a position on ("" is
// the oldest entry there is) without claiming it. Send, Await, Cancel and End act
// on behalf of the runtime that has the claim; Commit is refused.
func (r *Runtime) Observe(channelID, from string) *Channel {
	c := newChannel(r, channelID)
	c.position = from
	c.follow(kv.RuntimeTopic(channelID))
	return c
}

// take claims a channel and keeps the claim until the channel, or the runtime, is
// closed.
func (r *Runtime) take(ctx context.Context, channelID, how string, args ...string) (*Channel, error) {
	c := newChannel(r, channelID)
	c.token = rand.Text()
	known, err := c.keep(ctx, how, r.opts.Lease, args...)
	if err != nil {
		return nil, err
	}
	c.TeamID, c.EndpointID, c.Mode, c.CallID, c.TransactionID = known[2], known[3], known[4], known[5], known[6]
	c.Profile, c.Committed, c.position = []byte(known[7]), known[8], known[8]
	r.ending.Lock()
	defer r.ending.Unlock()
	if r.life.Err() != nil {
		return nil, ErrClosed
	}
	c.follow(kv.RuntimeTopic(channelID))
	c.running.Add(1)
	r.running.Go(func() {
		defer c.running.Done()
		c.renew()
	})
	return c, nil
}
