package callruntime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/pubsub"
	"telapi/internal/sleep"
)

// keptEntries is how many committed entries stay on the stream for observers.
const keptEntries = "1000"

// Channel is one live conversation. Its methods are safe for concurrent use.
type Channel struct {
	ID                          string
	TeamID, EndpointID          string
	Mode, CallID, TransactionID string
	Profile                     []byte      // gatewayProfile as JSON
	Offer                       *wire.Offer // set by Accept
	Committed                   string      // the committed position at the time of the claim; empty if none

	runtime      *Runtime
	token        string // of the claim; empty for an observer
	stream       stream // that Receive reads
	subscription *pubsub.Subscription
	life         context.Context // ends when the channel or its runtime is closed, or the claim is lost
	leave        context.CancelCauseFunc
	renewing     chan struct{} // closed when no goroutine renews the claim
	outbox       outbox

	news    chan struct{} // the stream may have new entries
	audio   chan *wire.ChannelMessage
	dropped atomic.Int64
	due     atomic.Pointer[time.Time] // when to run touch.lua; nil if unknown

	reading  chan struct{} // holds a value while a call of Receive reads; guards the fields below
	position string        // of the last entry that Receive returned
	unread   []Delivery
	current  bool // the stream had no further entries when it was last read
	ended    bool
}

// OpenOptions describe a channel without a browser session, such as a phone call.
type OpenOptions struct {
	ChannelID, TeamID, EndpointID string
	Mode, CallID, TransactionID   string
	Profile                       []byte // the gatewayProfile as JSON, fixed for the channel's life
}

// Open opens a channel and claims it. If the channel is already open for the same
// team and endpoint, Open claims it.
func (r *Runtime) Open(ctx context.Context, o OpenOptions) (*Channel, error) {
	if !wire.ValidChannelID(o.ChannelID) {
		return nil, invalidID("channel", o.ChannelID)
	}
	args := append([]string{rand.Text(), o.TeamID, o.EndpointID, o.Mode, o.CallID, o.TransactionID, string(o.Profile)}, kv.LimitArgs(r.opts.Limits)...)
	c, err := r.claimChannel(ctx, o.ChannelID, "open", args...)
	return c, wrap("open channel "+o.ChannelID, err)
}

// Attach claims an existing channel, including one that this runtime claimed
// before it was restarted.
func (r *Runtime) Attach(ctx context.Context, channelID string) (*Channel, error) {
	c, err := r.claimChannel(ctx, channelID, "attach")
	return c, wrap("attach to channel "+channelID, err)
}

func invalidID(of, id string) error {
	return fmt.Errorf("invalid %s ID %q: use 1 to 128 letters, digits and . _ : -", of, id)
}

// claimChannel claims a channel and renews the claim until the channel or the
// runtime is closed.
func (r *Runtime) claimChannel(ctx context.Context, channelID, how string, args ...string) (*Channel, error) {
	c := newChannel(r, channelID, rand.Text(), runtimeStream(channelID))
	reply, err := c.claim(ctx, how, r.opts.Lease, args...)
	if err != nil {
		return nil, err
	}
	c.TeamID, c.EndpointID, c.Mode, c.CallID, c.TransactionID = reply[2], reply[3], reply[4], reply[5], reply[6]
	c.Profile, c.Committed, c.position = []byte(reply[7]), reply[8], reply[8]
	c.renewing = make(chan struct{})
	if err := r.start(c.renew); err != nil {
		return nil, err
	}
	c.subscribe()
	return c, nil
}

func newChannel(r *Runtime, id, token string, s stream) *Channel {
	c := &Channel{
		ID: id, runtime: r, token: token, stream: s,
		news: make(chan struct{}, 1), audio: make(chan *wire.ChannelMessage, maxAudio), reading: make(chan struct{}, 1),
	}
	c.outbox.channel = c
	c.life, c.leave = context.WithCancelCause(r.life)
	return c
}

func (c *Channel) subscribe() {
	c.subscription = c.runtime.topics.Subscribe(c.stream.topic, subscriber{c})
}

// Close releases the claim, so that another runtime can claim the channel at
// once. The channel stays open; Receive fails with ErrClosed.
func (c *Channel) Close(ctx context.Context) error {
	c.leave(ErrClosed)
	c.subscription.Close()
	if c.token == "" {
		return nil
	}
	<-c.renewing
	_, err := c.claim(ctx, "renew", 0)
	if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// claim runs claim.lua.
func (c *Channel) claim(ctx context.Context, how string, lease time.Duration, args ...string) ([]string, error) {
	args = append([]string{c.runtime.opts.Name, c.token, strconv.FormatInt(lease.Milliseconds(), 10), how}, args...)
	reply, err := c.run(ctx, "claim", args...).AsStrSlice()
	if err == nil && reply[0] != "claimed" {
		err = replyErrors[reply[0]]
	}
	return reply, wrap("claim", err)
}

// renew renews the claim until the channel is closed or the claim is lost, which
// closes the channel for this runtime.
func (c *Channel) renew() {
	defer close(c.renewing)
	for sleep.For(c.life, c.runtime.opts.Lease/3) == nil {
		bounded, cancel := context.WithTimeout(c.life, c.runtime.opts.Lease)
		_, err := c.claim(bounded, "renew", c.runtime.opts.Lease)
		cancel()
		if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
			c.leave(err)
			return
		}
	}
}

// Commit marks all entries up to a position as handled. The next runtime that
// claims the channel receives entries after it.
func (c *Channel) Commit(ctx context.Context, position string) error {
	return c.do(ctx, "commit", c.token, position, keptEntries)
}

// End ends the channel for all participants. Ending it again has no effect.
func (c *Channel) End(ctx context.Context, reason string) error {
	entry, err := json.Marshal(wire.Entry{Kind: wire.KindChannelEnded, ChannelID: c.ID, At: time.Now().UnixMilli(), Reason: reason})
	if err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return c.do(ctx, "end", c.token, reason, string(entry))
}

// do runs a script that replies with one word.
func (c *Channel) do(ctx context.Context, script string, args ...string) error {
	word, err := c.run(ctx, script, args...).ToString()
	if err == nil {
		err = replyErrors[word]
	}
	return wrap(script, err)
}

// run runs a script on the channel. A channel with an invalid ID does not exist;
// in a cluster its keys would be in different slots.
func (c *Channel) run(ctx context.Context, script string, args ...string) rueidis.RedisResult {
	switch {
	case c.runtime.life.Err() != nil:
		return rueidis.NewErrorResult(ErrClosed)
	case !wire.ValidChannelID(c.ID):
		return rueidis.NewErrorResult(ErrLost)
	}
	return c.runtime.scripts[script].Exec(ctx, c.runtime.client, kv.ChannelKeys(c.ID), args)
}
