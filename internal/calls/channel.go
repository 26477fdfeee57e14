package calls

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
	"telapi/internal/redisconn"
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
	Offer                       *wire.Offer // of a session: its identity and metadata; nil for a channel that Open opened
	Committed                   string      // the committed position at the time of the claim; empty if none
	// LostAt is when the store was last found to have lost data of the channel; zero
	// if never. The runtime that had the claim then gets ErrLost, or ErrClaimLost if
	// its lease has expired and this one has claimed the channel.
	LostAt time.Time
	// Lost reports that Resume found that data was lost.
	Lost bool

	runtime      *Runtime
	name         string                    // of the claim
	token        string                    // token of the claim; empty for an observer
	watcher      Watcher                   // nil: Receive reads
	stream       stream                    // the stream that Receive reads
	claimedUntil atomic.Pointer[time.Time] // local time until which no other runtime can claim the channel
	subscription *pubsub.Subscription
	ctx          context.Context // ends when the channel or its runtime is closed, or the claim is lost
	cancel       context.CancelCauseFunc
	renewed      chan struct{} // closed when the goroutine that renews the claim has returned
	outbox       outbox

	changed chan struct{} // holds a value if the stream may have new entries
	audio   chan *wire.ChannelMessage
	dropped atomic.Int64              // audio frames that did not fit into audio
	due     atomic.Pointer[time.Time] // when to run touch.lua; nil: now
	newest  atomic.Pointer[WorkItem]  // the work item that was registered last; nil if none
	// lastReceived is a copy of position for renewals of the claim; nil if none.
	lastReceived atomic.Pointer[string]
	lastEntry    atomic.Pointer[string] // position of the entry channel_ended; nil before Receive has returned it
	newestEntry  atomic.Pointer[string] // position of the newest entry on the stream; nil: not known
	checkNow     atomic.Bool            // another runtime may have the claim

	reading  chan struct{} // holds a value while a call of Receive reads; guards the fields below
	position string        // of the last entry that Receive returned
	unread   []Delivery
	current  bool // the stream had no further entries when it was last read
	ended    bool // Receive has returned the last entry
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
	return r.OpenAs(ctx, r.claim(), o)
}

// OpenAs is Open with a claim.
func (r *Runtime) OpenAs(ctx context.Context, claim Claim, o OpenOptions) (*Channel, error) {
	if !wire.ValidID(o.ChannelID) {
		return nil, invalidID("channel", o.ChannelID)
	}
	args := append([]string{rand.Text(), o.TeamID, o.EndpointID, o.Mode, o.CallID, o.TransactionID, string(o.Profile)}, kv.LimitArgs(r.opts.Limits)...)
	c, err := r.claimChannel(ctx, claim, o.ChannelID, "open", args...)
	return c, wrap("open channel "+o.ChannelID, err)
}

// Attach claims an existing channel. A restarted runtime attaches to the channels
// that it had before: it need not wait until the old claims expire.
// Attach fails with ErrNotFound, with ErrClaimed if a runtime with another name has
// the claim, and with ErrEnded if the channel has ended and its last entry is
// committed.
func (r *Runtime) Attach(ctx context.Context, channelID string) (*Channel, error) {
	return r.AttachAs(ctx, r.claim(), channelID)
}

// AttachAs is Attach with a claim.
func (r *Runtime) AttachAs(ctx context.Context, claim Claim, channelID string) (*Channel, error) {
	c, err := r.claimChannel(ctx, claim, channelID, "attach")
	return c, wrap("attach to channel "+channelID, err)
}

// Resume continues a claim under another token. It fails with ErrClaimLost if no claim
// has this name, or if team is not empty and the channel is not of that team. received is
// the position of the newest entry that the runtime has; empty: none.
func (r *Runtime) Resume(ctx context.Context, claim Claim, channelID, received, team string) (*Channel, error) {
	c, err := r.claimChannel(ctx, claim, channelID, "resume", received, team)
	return c, wrap("resume channel "+channelID, err)
}

// Claim describes a claim.
type Claim struct {
	// Name identifies the claim: a later claim with the same name takes the channel over.
	Name string
	// Token is new for every claim.
	Token string
	// Watcher makes Poll read the channel instead of Receive.
	Watcher Watcher
}

// claim returns a claim of this runtime.
func (r *Runtime) claim() Claim { return Claim{Name: r.opts.Name, Token: rand.Text()} }

func invalidID(kind, id string) error {
	return fmt.Errorf("invalid %s ID %q: use 1 to 128 letters, digits and . _ : -", kind, id)
}

// claimChannel claims a channel. Unless there is a watcher, it renews the claim until the
// channel or the runtime is closed.
func (r *Runtime) claimChannel(ctx context.Context, claim Claim, channelID, action string, args ...string) (*Channel, error) {
	if !wire.ValidID(channelID) {
		return nil, ErrNotFound
	}
	c := newChannel(r, channelID, claim, runtimeStream(channelID))
	reply, err := c.claim(ctx, action, r.opts.Lease, args...)
	if err != nil {
		c.cancel(err)
		return nil, err
	}
	if reply[10] != "" {
		c.Offer = new(wire.Offer)
		if err := json.Unmarshal([]byte(reply[10]), c.Offer); err != nil {
			return nil, fmt.Errorf("decode the offer: %w", err)
		}
	}
	c.TeamID, c.EndpointID, c.Mode, c.CallID, c.TransactionID = reply[2], reply[3], reply[4], reply[5], reply[6]
	c.Profile, c.Committed, c.position = []byte(reply[7]), reply[8], reply[8]
	if ms, err := strconv.ParseInt(reply[9], 10, 64); err == nil {
		c.LostAt = time.UnixMilli(ms)
	}
	c.Lost = reply[13] != ""
	if c.watcher == nil {
		c.renewed = make(chan struct{})
		if err := r.start(c.keepClaim); err != nil {
			return nil, err
		}
	}
	c.subscribe()
	return c, nil
}

func newChannel(r *Runtime, id string, claim Claim, s stream) *Channel {
	c := &Channel{ID: id, runtime: r, name: claim.Name, token: claim.Token, watcher: claim.Watcher, stream: s}
	if c.watcher == nil {
		c.changed, c.audio, c.reading = make(chan struct{}, 1), make(chan *wire.ChannelMessage, maxAudio), make(chan struct{}, 1)
	}
	c.outbox.channel = c
	c.ctx, c.cancel = context.WithCancelCause(r.ctx)
	return c
}

func (c *Channel) subscribe() {
	c.subscription = c.runtime.topics.Subscribe(c.stream.topic, subscriber{c})
}

// Close releases the claim, so that another runtime can claim the channel at
// once. A session is offered to the runtimes again. The channel stays open; Receive fails
// with ErrClosed.
func (c *Channel) Close(ctx context.Context) error {
	if c.token == "" {
		c.Abandon()
		return nil
	}
	if c.renewed != nil {
		c.Abandon()
		<-c.renewed
	}
	reply, err := c.claim(ctx, "renew", 0, "", "", "")
	if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
		c.Abandon()
		return nil
	}
	if err == nil {
		c.Abandon()
		err = c.runtime.offer(ctx, reply[10])
	}
	return err
}

// Abandon stops reading the channel without releasing the claim.
func (c *Channel) Abandon() {
	c.cancel(ErrClosed)
	c.subscription.Close()
}

// claim runs claim.lua with an action that it defines.
func (c *Channel) claim(ctx context.Context, action string, lease time.Duration, args ...string) ([]string, error) {
	until, due, newest := time.Now().Add(lease), c.due.Load(), c.newestEntry.Load()
	args = append([]string{c.name, c.token, strconv.FormatInt(lease.Milliseconds(), 10), action, c.runtime.clock.Now()}, args...)
	reply, err := c.run(ctx, "claim", args...).AsStrSlice()
	if err == nil {
		err = replyError(reply[0])
	}
	if err == nil {
		c.claimedUntil.Store(&until)
		c.due.CompareAndSwap(due, c.dueIn(parseWait(reply[11]))) // unless a notice has arrived since
		entry := reply[12]                                       // a pointer to the element would keep the whole reply in memory
		c.newestEntry.CompareAndSwap(newest, &entry)
	}
	return reply, wrap("claim", err)
}

// renewClaim extends the claim. It fails with ErrLost if the store has lost a
// message, a work item or an entry that this runtime refers to.
func (c *Channel) renewClaim(ctx context.Context) error {
	_, err := c.claim(ctx, "renew", c.runtime.opts.Lease, c.outbox.newestID(), c.newestItem(), c.received())
	if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
		c.cancel(err)
	}
	return err
}

// received returns the position of the last entry that Receive returned; empty if
// there is none.
func (c *Channel) received() string {
	if position := c.lastReceived.Load(); position != nil {
		return *position
	}
	return ""
}

// itemRetention is how long after its deadline a work item must still be known to the
// store, which keeps it for an hour. It is longer than a failover.
const itemRetention = 10 * time.Minute

// newestItem returns the ID of the work item that was registered last. It is empty
// if there is none or the store may have forgotten it.
func (c *Channel) newestItem() string {
	if item := c.newest.Load(); item != nil && time.Now().Before(item.ExpiresAt.Add(itemRetention)) {
		return item.ID
	}
	return ""
}

// checkClaim renews the claim if its lease has expired, for example because the
// process was suspended. It fails with ErrClaimLost if another runtime has claimed
// the channel meanwhile. An observer has no claim.
func (c *Channel) checkClaim(ctx context.Context) error {
	if c.token == "" || time.Now().Before(*c.claimedUntil.Load()) {
		return nil
	}
	return c.renewClaim(ctx)
}

// keepClaim renews the claim until the channel is closed or the claim is lost,
// which closes the channel for this runtime.
func (c *Channel) keepClaim() {
	defer close(c.renewed)
	for sleep.For(c.ctx, c.runtime.opts.Lease/3) == nil {
		ctx, cancel := context.WithTimeout(c.ctx, c.runtime.opts.Lease)
		_ = c.renewClaim(ctx) // closes the channel if the claim is lost
		cancel()
	}
}

// Commit marks all entries up to a position as handled. The next runtime that
// claims the channel receives the entries after this position. Committing the last
// entry, channel_ended, also closes the channel for this runtime.
func (c *Channel) Commit(ctx context.Context, position string) error {
	err := c.do(ctx, "commit", c.token, position, keptEntries)
	if last := c.lastEntry.Load(); err == nil && last != nil && *last == position {
		c.cancel(ErrEnded)
		c.subscription.Close()
	}
	return err
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
		err = replyError(word)
	}
	return wrap(script, err)
}

// attemptTimeout bounds one attempt to run a script. A script that has not
// started by then does not run any more.
const attemptTimeout = 5 * time.Second

// retryDelay is the time between two attempts while the store is unavailable.
const retryDelay = 100 * time.Millisecond

// run runs a script on the channel and repeats it until ctx ends, while the store
// is unavailable. A full store is reported at once. Every script can be repeated after a lost reply. No attempt takes
// effect after run has returned, unless ctx was canceled: then the last attempt can
// take effect within attemptTimeout. A channel with an invalid ID does not exist: in
// a cluster its keys would be in different slots.
func (c *Channel) run(ctx context.Context, script string, args ...string) rueidis.RedisResult {
	if !wire.ValidID(c.ID) {
		return rueidis.NewErrorResult(ErrNotFound)
	}
	r := c.runtime
	args = append(args, "")
	for {
		if r.ctx.Err() != nil {
			return rueidis.NewErrorResult(ErrClosed)
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		deadline, _ := attempt.Deadline()
		args[len(args)-1] = r.clock.Deadline(deadline)
		result := r.exec(attempt, script, c.ID, args)
		cancel()
		err := result.Error()
		code := redisconn.ErrorCode(err)
		if redisconn.Full(err) {
			return rueidis.NewErrorResult(fmt.Errorf("%w: %w", ErrFull, err))
		}
		if err == nil || ctx.Err() != nil || code != "" && !redisconn.Temporary(err) {
			return result
		}
		if code == "LATE" {
			r.measureClock()
		}
		_ = sleep.For(ctx, retryDelay)
	}
}

func (r *Runtime) exec(ctx context.Context, script, channelID string, args []string) rueidis.RedisResult {
	if replicated := r.replicated[script]; replicated != nil {
		return replicated.Exec(ctx, r.client, channelID, args)
	}
	return r.scripts[script].Exec(ctx, r.client, kv.ChannelKeys(channelID), args)
}
