package callruntime

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/pubsub"
)

// onlookers may look back at this many entries that were committed.
const onlookers = "1000"

// Channel is one live conversation, claimed by this runtime.
type Channel struct {
	ID                          string
	TeamID, EndpointID          string
	Mode, CallID, TransactionID string
	Profile                     []byte      // gatewayProfile as JSON
	Offer                       *wire.Offer // set by Accept
	Committed                   string      // the position that was, when the channel was claimed; empty: none

	runtime *Runtime
	token   string // empty: an onlooker
	member  *pubsub.Subscription
	life    context.Context // ends when it is closed, or its runtime is, or the claim is lost
	leave   context.CancelCauseFunc
	running sync.WaitGroup
	outbox  outbox

	// list returns what is on its stream.
	list func(ctx context.Context, from string) ([]Delivery, error)

	news    chan struct{} // there may be something to read
	audio   chan *wire.ChannelMessage
	dropped atomic.Int64
	due     atomic.Pointer[time.Time] // when something is to be done on the channel; nil: not known

	reading  sync.Mutex
	position string // of what Receive returned last
	unread   []Delivery
	ended    bool
}

func newChannel(r *Runtime, id string) *Channel {
	c := &Channel{
		ID: id, runtime: r,
		list: func(ctx context.Context, from string) ([]Delivery, error) {
			return r.entries(ctx, id, from, readCount+1)
		},
		news: make(chan struct{}, 1), audio: make(chan *wire.ChannelMessage, maxAudio),
	}
	c.outbox.channel = c
	return c
}

// follow begins to hear of what happens, until the channel is closed.
func (c *Channel) follow(topic string) {
	c.life, c.leave = context.WithCancelCause(c.runtime.life)
	c.member = c.runtime.topics.Subscribe(topic, ear{c})
}

// Close gives the claim up, so that another runtime can have the channel at
// once. The channel goes on, and is not received here any more.
func (c *Channel) Close(ctx context.Context) error {
	c.leave(ErrClosed)
	c.running.Wait()
	c.member.Close()
	if c.token == "" {
		return nil
	}
	_, err := c.keep(ctx, "renew", 0)
	if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// keep runs claim.lua.
func (c *Channel) keep(ctx context.Context, how string, lease time.Duration, args ...string) ([]string, error) {
	args = append([]string{c.runtime.opts.Name, c.token, strconv.FormatInt(lease.Milliseconds(), 10), how}, args...)
	reply, err := c.run(ctx, c.runtime.claim, args...).AsStrSlice()
	if err == nil && reply[0] != "claimed" {
		err = refusals[reply[0]]
	}
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	return reply, nil
}

// renew keeps the claim alive, and ends the channel for this runtime when it is
// another's.
func (c *Channel) renew() {
	for {
		wait(c.life, c.runtime.opts.Lease/3)
		if c.life.Err() != nil {
			return
		}
		bounded, cancel := context.WithTimeout(c.life, c.runtime.opts.Lease)
		_, err := c.keep(bounded, "renew", c.runtime.opts.Lease)
		cancel()
		if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
			c.leave(err)
			return
		}
	}
}

// Commit says that everything up to a position has been dealt with. Whoever
// reads the channel next starts after it.
func (c *Channel) Commit(ctx context.Context, position string) error {
	return c.do(ctx, "commit", c.runtime.commit, c.token, position, onlookers)
}

// End ends the channel for everybody. Ending it twice is harmless.
func (c *Channel) End(ctx context.Context, reason string) error {
	entry, err := json.Marshal(wire.Entry{Kind: wire.KindChannelEnded, ChannelID: c.ID, At: time.Now().UnixMilli(), Reason: reason})
	if err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return c.do(ctx, "end", c.runtime.end, c.token, reason, string(entry))
}

// do runs a script that answers with one word.
func (c *Channel) do(ctx context.Context, doing string, script *rueidis.Lua, args ...string) error {
	word, err := c.run(ctx, script, args...).ToString()
	if err == nil {
		err = refusals[word]
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// run runs a script. Where no channel can have the name the store knows none: in
// a cluster, its keys would lie in different slots.
func (c *Channel) run(ctx context.Context, script *rueidis.Lua, args ...string) rueidis.RedisResult {
	switch {
	case c.runtime.life.Err() != nil:
		return rueidis.NewErrorResult(ErrClosed)
	case !wire.ValidChannelID(c.ID):
		return rueidis.NewErrorResult(ErrLost)
	}
	return script.Exec(ctx, c.runtime.client, kv.ChannelKeys(c.ID), args)
}
