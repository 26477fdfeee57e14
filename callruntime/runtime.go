// Package callruntime is the client library for call runtimes. A runtime accepts
// the sessions that browsers open, receives what happens on their channels, sends
// messages, awaits results of bots, models and tools, and ends channels.
//
// Runtime and service communicate only through the key-value store, with the
// scripts in internal/lua. A runtime in another language runs the same scripts;
// see docs/runtime-contract.md.
//
// The entries of a channel arrive in order and at the runtime's own pace. The
// runtime commits the position of each entry it has handled. After a restart or
// a takeover by another runtime, Receive continues after that position.
package callruntime

import (
	"context"
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
	"telapi/internal/redisconn"
	"telapi/internal/sleep"
)

// The errors that operations on a channel wrap.
var (
	ErrLost            = errors.New("channel not found, or the store has lost part of it")
	ErrEnded           = errors.New("channel has ended")
	ErrOtherTeam       = errors.New("channel belongs to another team or endpoint")
	ErrClaimed         = errors.New("channel is claimed by another runtime")
	ErrClaimLost       = errors.New("claim on the channel is lost")
	ErrUnknownPosition = errors.New("position is not on the stream")
	ErrClosed          = errors.New("channel or runtime is closed")

	ErrWorkItemNotFound = errors.New("work item not found")
	ErrWorkItemExists   = errors.New("another work item with this ID exists")
)

// replyErrors maps the replies of the scripts to errors.
var replyErrors = map[string]error{
	"lost": ErrLost, "ended": ErrEnded, "foreign": ErrOtherTeam, "taken": ErrClaimed, "claim_lost": ErrClaimLost, "unknown": ErrUnknownPosition,
	"no_item": ErrWorkItemNotFound, "exists": ErrWorkItemExists,
}

// Options configure a Runtime.
type Options struct {
	// Store describes how to connect to the service's store; see Locate.
	Store rueidis.ClientOption
	// Name identifies this runtime among others and stays the same after a
	// restart. It is required.
	Name string
	// Group is the consumer group through which runtimes share offers: each
	// session goes to one member. The default is the group of runtimes that
	// accept every session. Runtimes that select sessions use another group;
	// every group sees every unclaimed session.
	Group string
	// Lease is how long a claim outlives its runtime; default 15 s.
	Lease time.Duration
	// Limits apply to channels that Open opens; default
	// wire.DefaultChannelLimits.
	Limits wire.ChannelLimits
}

// Runtime is a call runtime's connection to the store. Its methods are safe for
// concurrent use. While the store is unavailable they wait until their context
// ends or Close is called.
type Runtime struct {
	opts    Options
	client  rueidis.Client
	topics  *pubsub.Hub
	life    context.Context // ends with Close
	stop    context.CancelCauseFunc
	mu      sync.Mutex // orders the end of life and starts of goroutines
	running sync.WaitGroup
	// Running one of these scripts again after a lost reply changes nothing.
	claim, commit, send, end, await, cancel, touch *rueidis.Lua
}

// New connects to the store.
func New(opts Options) (*Runtime, error) {
	if opts.Name == "" {
		return nil, errors.New("missing runtime name: set Options.Name")
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
	opts.Store.PipelineMultiplex = -1 // one connection: concurrent commands share its reads and writes
	opts.Store.RetryDelay = redisconn.RetryDelay(func(attempts int) time.Duration {
		return min(time.Second, time.Millisecond<<min(attempts, 10))
	})
	client, err := rueidis.NewClient(opts.Store)
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	life, stop := context.WithCancelCause(context.Background())
	r := &Runtime{
		opts: opts, client: client, topics: pubsub.New(), life: life, stop: stop,
		claim:  rueidis.NewLuaScriptRetryable(lua.Channel("claim")),
		commit: rueidis.NewLuaScriptRetryable(lua.Channel("commit")),
		send:   rueidis.NewLuaScriptRetryable(lua.Channel("send")),
		end:    rueidis.NewLuaScriptRetryable(lua.Channel("end")),
		await:  rueidis.NewLuaScriptRetryable(lua.Channel("await")),
		cancel: rueidis.NewLuaScriptRetryable(lua.Channel("cancel")),
		touch:  rueidis.NewLuaScriptRetryable(lua.Channel("touch")),
	}
	r.running.Go(r.serveTopics)
	return r, nil
}

// Close disconnects from the store and waits for all goroutines of the runtime.
// Calls that wait fail with ErrClosed. Claims expire with their lease; close a
// channel first to release its claim at once.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.stop(ErrClosed)
	r.mu.Unlock()
	r.running.Wait()
	r.client.Close()
}

// start runs f in a goroutine that Close waits for. It fails if the runtime is
// closed.
func (r *Runtime) start(f func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life.Err() != nil {
		return ErrClosed
	}
	r.running.Go(f)
	return nil
}

func (r *Runtime) serveTopics() {
	delays := backoff.NewExponentialBackOff()
	delays.MaxInterval = 5 * time.Second
	for r.life.Err() == nil {
		if served, _ := r.topics.Serve(r.life, r.client, nil); served {
			delays.Reset()
		}
		_ = sleep.For(r.life, delays.NextBackOff())
	}
}
