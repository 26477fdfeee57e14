package calls

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/kv"
)

// drained is the reply of the script commit after the last commit on an ended channel.
const drained = "drained"

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
	name         string // of the claim
	requestedAt  time.Time
	earliest     string // requestedAt in the time of the store's clock, at the earliest, as estimated then
	token        string // of the claim; empty for an observer
	epoch        string // of the channel when it was claimed
	awaitChat    string // of the claim
	watcher      Watcher
	inbox        *inbox                    // the watcher if Receive reads the channel; otherwise nil
	stream       stream                    // the stream that Poll reads
	claimedUntil atomic.Pointer[time.Time] // local time until which no other runtime can claim the channel
	subscription *kv.Subscription
	ctx          context.Context // ends when the channel or its runtime is closed, or the claim is lost
	cancel       context.CancelCauseFunc

	due         atomic.Pointer[time.Time] // when to run the script touch; nil: now
	newestItem  atomic.Pointer[WorkItem]  // the work item that was registered last; nil if none
	newestSent  atomic.Pointer[string]    // ID of the newest message that the store acknowledged; nil if none
	newestEntry atomic.Pointer[string]    // position of the newest entry on the stream; "?": not known
	checkNow    atomic.Bool               // another runtime may have the claim
	sentBefore  string                    // newestSent at the time of the claim
	kept        kept                      // entries of notices that Poll has not returned

	// Used by Poll only.
	position string // of the last entry that was read
	drained  bool   // the channel has ended, and all entries are committed
}

// Open opens a channel without a browser session, such as a phone call, and claims it. If the
// channel is already open for the same team and endpoint, Open claims it.
func (r *Runtime) Open(ctx context.Context, claim Claim, o wire.Open) (*Channel, error) {
	if !wire.ValidID(o.Channel) {
		return nil, invalidID("channel", o.Channel)
	}
	args := append([]string{rand.Text(), o.Team, o.Endpoint, o.Mode, o.CallID, o.TransactionID, string(o.Profile)}, kv.LimitArgs(r.opts.Limits)...)
	return r.claimChannel(ctx, claim, o.Channel, "open", args...)
}

// Attach claims an existing channel. A restarted runtime attaches to the channels
// that it had before: it need not wait until the old claims expire.
// Attach fails with ErrNotFound, with ErrClaimed if a runtime with another name has
// the claim, and with ErrEnded if the channel has ended and its last entry is
// committed.
func (r *Runtime) Attach(ctx context.Context, claim Claim, channelID string) (*Channel, error) {
	return r.claimChannel(ctx, claim, channelID, "attach")
}

// Recover is Attach after ErrLost of another claim with the same name. LostAt of the
// channel is the time of the call. It fails with ErrClaimLost if there is a later claim.
func (r *Runtime) Recover(ctx context.Context, claim Claim, lost *Channel) (*Channel, error) {
	return r.claimChannel(ctx, claim, lost.ID, "recover", lost.awaitChat, lost.token)
}

// Resume continues a claim under another token. It fails with ErrClaimLost if no claim
// has this name, or if team is not empty and the channel is not of that team. received is
// the position of the newest entry that the runtime has; empty: none.
func (r *Runtime) Resume(ctx context.Context, claim Claim, channelID, received, team string) (*Channel, error) {
	return r.claimChannel(ctx, claim, channelID, "resume", received, team, r.aheadOfReplicas())
}

// Claim describes a claim.
type Claim struct {
	// Name identifies the claim: a later claim with the same name takes the channel over;
	// default: that of the runtime.
	Name string
	// Token is new for every claim; default: a random one.
	Token string
	// RequestedAt is when the claim was requested; zero: now. Of two claims under one name
	// the one that was requested later wins.
	RequestedAt time.Time
	// AwaitChat is the kind and the TTL in ms of the work items that the store registers with chat
	// frames, such as "bot 300000"; empty: none. Only an accepted session has it. Resume and
	// Recover keep it.
	AwaitChat string
	// Watcher is notified when to call Poll; nil: Receive reads the channel.
	Watcher Watcher
}

func invalidID(kind, id string) error {
	return fmt.Errorf("invalid %s ID %q: use 1 to 128 letters, digits and . _ : - (not . or .. alone)", kind, id)
}

func (r *Runtime) claimChannel(ctx context.Context, claim Claim, channelID, action string, args ...string) (*Channel, error) {
	if !wire.ValidID(channelID) {
		return nil, ErrNotFound
	}
	claim.Name, claim.Token = cmp.Or(claim.Name, r.opts.Name), cmp.Or(claim.Token, rand.Text())
	c := newChannel(r, channelID, claim, runtimeStream(channelID))
	reply, err := c.claim(ctx, action, r.opts.Lease, args...)
	if err == nil && reply.offer != "" {
		if err = json.Unmarshal([]byte(reply.offer), &c.Offer); err != nil {
			_ = r.start(func() { r.undo(c.ID, c.token) })
		}
	}
	if err != nil {
		c.cancel(err)
		return nil, wrap(action+" channel "+channelID, err)
	}
	c.TeamID, c.EndpointID, c.Mode, c.CallID, c.TransactionID = reply.team, reply.endpoint, reply.mode, reply.callID, reply.transactionID
	c.Profile, c.Committed, c.position = []byte(reply.profile), reply.committed, reply.committed
	if ms, err := strconv.ParseInt(reply.lostAt, 10, 64); err == nil {
		c.LostAt = time.UnixMilli(ms)
	}
	c.Lost, c.epoch, c.awaitChat = reply.lost != "", strings.Clone(reply.epoch), strings.Clone(reply.awaitChat) // without the rest of the reply
	if message := strings.Clone(reply.newestMessage); message != "" {
		c.newestSent.Store(&message)
		c.sentBefore = message
	}
	c.subscribe()
	if held := strings.Clone(reply.held); held != "" {
		_ = r.start(func() { c.showHeld(held) })
	}
	return c, nil
}

func newChannel(r *Runtime, id string, claim Claim, s stream) *Channel {
	c := &Channel{ID: id, runtime: r, name: claim.Name, token: claim.Token, watcher: claim.Watcher, stream: s}
	if c.watcher == nil {
		c.inbox = &inbox{changed: make(chan struct{}, 1), audio: make(chan string, maxAudio)}
		c.watcher = c.inbox
	}
	if c.requestedAt = claim.RequestedAt; c.requestedAt.IsZero() {
		c.requestedAt = time.Now()
	}
	c.readAgain()
	c.earliest = r.clock.AtEarliest(id, c.requestedAt)
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
	reply, err := c.claim(ctx, "renew", 0, "", "", "", "", "") // a lease of 0 releases the claim
	lost, gone := errors.Is(err, ErrLost), errors.Is(err, ErrClaimLost)
	if err != nil && !lost && !gone {
		return err
	}
	c.Abandon()
	switch {
	case lost: // the lease goes on
		_, err = c.runtime.revoke(ctx, c.ID, c.token)
		return err
	case gone:
		return nil
	}
	c.runtime.releaseLater(c.ID, c.token)
	return c.runtime.offer(ctx, reply.offer, true)
}

// Undo releases the claim in the background, until that succeeds. A session is offered again.
func (c *Channel) Undo() {
	c.Abandon()
	_ = c.runtime.start(func() { c.runtime.undo(c.ID, c.token) })
}

// Abandon stops reading the channel without releasing the claim.
func (c *Channel) Abandon() {
	if c.token != "" && c.ctx.Err() == nil {
		c.checkLossLater()
	}
	c.cancel(ErrClosed)
	c.subscription.Close()
}

// claimReply is the reply of the script claim.
type claimReply struct {
	epoch, team, endpoint, mode, callID, transactionID, profile string

	committed     string // position
	lostAt        string // Unix ms of the last loss of data; empty: none
	offer         string // of the session
	wait          string // ms until the next work item times out or the browser's lease expires; empty: there is neither
	newestEntry   string // position
	lost          string // not empty: the entry of a resumed claim is lost
	awaitChat     string // of the claim
	newestMessage string // ID of the newest one that the browser can have
	held          string // ID of the newest one, if it is held back until replicas have it; otherwise empty
}

func parseClaim(words []string) (r claimReply, err error) {
	fields := []*string{
		&r.epoch, &r.team, &r.endpoint, &r.mode, &r.callID, &r.transactionID, &r.profile, &r.committed, &r.lostAt, &r.offer, &r.wait,
		&r.newestEntry, &r.lost, &r.awaitChat, &r.newestMessage, &r.held,
	}
	if err := replyError(words[0]); err != nil {
		return r, err
	}
	if len(words) != 1+len(fields) {
		return r, fmt.Errorf("the script claim replied with %d words, not %d", len(words), 1+len(fields))
	}
	for i, field := range fields {
		*field = words[1+i]
	}
	return r, nil
}

// claim runs the script claim with an action that it defines.
func (c *Channel) claim(ctx context.Context, action string, lease time.Duration, args ...string) (reply claimReply, err error) {
	until, due, newest := time.Now().Add(lease), c.due.Load(), c.newestEntry.Load()
	args = append([]string{c.name, c.token, kv.Millis(lease), action, c.runtime.clock.At(c.ID, c.requestedAt)}, args...)
	words, err := c.run(ctx, "claim", args...).AsStrSlice()
	if err == nil {
		reply, err = parseClaim(words)
	}
	if err == nil {
		c.claimedUntil.Store(&until)
		c.due.CompareAndSwap(due, c.dueIn(parseWait(reply.wait)))    // unless a notice has arrived since
		c.newestEntry.CompareAndSwap(newest, new(reply.newestEntry)) // a pointer to the field would keep the whole reply in memory
	}
	return reply, wrap("claim", err)
}

// renewClaim extends the claim. It fails with ErrLost if the store has lost a
// message, a work item or an entry that this runtime refers to.
func (c *Channel) renewClaim(ctx context.Context) error {
	_, err := c.claim(ctx, "renew", c.runtime.opts.Lease, c.lastSent(), c.lastItem(), c.position, c.epoch, c.runtime.aheadOfReplicas())
	if errors.Is(err, ErrClaimLost) || errors.Is(err, ErrLost) {
		c.cancel(err)
	}
	return err
}

// itemRetention is how long after its deadline a work item must still be known to the
// store, which keeps it for an hour, or until 1,024 later ones are settled. It is longer
// than a failover.
const itemRetention = 10 * time.Minute

// lastItem returns number, @ and ID of the work item that was registered last. It is empty
// if there is none or it expired long ago.
func (c *Channel) lastItem() string {
	if item := c.newestItem.Load(); item != nil && time.Now().Before(item.ExpiresAt.Add(itemRetention)) {
		return item.number + "@" + item.ID
	}
	return ""
}

// Commit marks all entries up to a position as handled. The next runtime that
// claims the channel receives the entries after this position. Committing the last
// entry, channel_ended, also closes the channel for this runtime.
func (c *Channel) Commit(ctx context.Context, position string) error {
	word, err := c.run(ctx, "commit", c.token, position).ToString()
	if err == nil {
		err = replyError(word)
	}
	if word == drained {
		c.cancel(ErrEnded)
		c.subscription.Close()
	}
	return wrap("commit", err)
}

// End ends the channel for all participants. Ending it again has no effect.
func (c *Channel) End(ctx context.Context, reason string) error {
	entry, err := json.Marshal(wire.Entry{Kind: wire.KindChannelEnded, ChannelID: c.ID, At: time.Now().UnixMilli(), Reason: reason})
	if err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return c.do(ctx, "end_channel", c.token, reason, string(entry))
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

// run runs a script on the channel and repeats it until ctx or the claim ends, while the store is
// unavailable. A full store is reported at once. Every script can be repeated after a lost
// reply. No attempt takes effect after run has returned, unless ctx was canceled: then the
// last attempt can take effect within attemptTimeout. A channel with an invalid ID does not
// exist: in a cluster its keys would be in different slots.
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
		args[len(args)-1] = r.clock.Window(c.ID, deadline)
		result := r.exec(attempt, script, c.ID, args)
		cancel()
		err := result.Error()
		code := kv.ErrorCode(err)
		if kv.IsFull(err) {
			return rueidis.NewErrorResult(fmt.Errorf("%w: %w", ErrFull, err))
		}
		if err == nil || code != "" && !kv.IsTemporary(err) {
			return result
		}
		if ctx.Err() == nil && (code == "LATE" || code == "CLOCK") {
			r.clock.Forget()
			r.measureClock()
		}
		_ = background.Sleep(ctx, retryDelay)
		ended := c.token != "" && c.ctx.Err() != nil // after a failover, the store may have the claim again
		if ctx.Err() != nil || ended && r.ctx.Err() == nil {
			return rueidis.NewErrorResult(fmt.Errorf("%w: %w", ErrUnavailable, err))
		}
	}
}

func (r *Runtime) exec(ctx context.Context, script, channelID string, args []string) rueidis.RedisResult {
	if replicated := r.replicated[script]; replicated != nil && waitsForReplicas(script, args) {
		return replicated.Exec(ctx, r.client, channelID, args)
	}
	return r.scripts[script].Exec(ctx, r.client, kv.ChannelKeys(channelID), args)
}

// waitsForReplicas reports whether a call waits for replicas, if its script does. Of the
// claims, only one that opens a channel or is released does: a runtime whose claim was lost
// learns of it, and renewals are frequent.
func waitsForReplicas(script string, args []string) bool {
	return script != "claim" || args[2] == "0" || args[3] == "open"
}
