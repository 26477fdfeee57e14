// Package calls runs the calls of runtimes on the key-value store. A runtime accepts
// the sessions that browsers open, receives what happens on their channels, sends
// messages, awaits results of bots, models and tools, and ends channels.
//
// Package runtimeapi runs the requests of call runtimes with it, and the command line
// acts for them. It changes the store only with the scripts in internal/kv/lua.
//
// The entries of a channel arrive in order and at the runtime's own pace. The
// runtime commits the position of each entry it has handled. After a restart or
// a takeover by another runtime, reading continues after that position.
package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/kv"
)

// The errors that operations on a channel wrap. ErrLost means that the store has
// lost a channel that this runtime had claimed, or data that it had acknowledged or
// delivered, for example in a failover; then Attach again. ErrNotFound means that a channel
// that this runtime does not have does not exist. ErrFull means that the store has no memory
// left: nothing was stored, and the operation can be repeated after data was removed, for
// example by Commit, which works.
var (
	ErrNotFound        = errors.New("channel not found")
	ErrLost            = errors.New("the store has lost data of the channel")
	ErrEnded           = errors.New("channel has ended")
	ErrOtherTeam       = errors.New("channel belongs to another team or endpoint")
	ErrClaimed         = errors.New("channel is claimed by another runtime")
	ErrClaimLost       = errors.New("claim on the channel is lost")
	ErrUnknownPosition = errors.New("position is not on the stream")
	ErrClosed          = errors.New("channel or runtime is closed")
	ErrReplaced        = errors.New("the runtime has another connection")
	ErrFull            = errors.New("the store is full")
	ErrTooLarge        = errors.New("message too large")
	ErrUnavailable     = errors.New("the store is unavailable")

	ErrWorkItemNotFound = errors.New("work item not found")
	ErrWorkItemExists   = errors.New("another work item with this ID or credential exists")
	ErrTooManyWorkItems = errors.New("the channel has too many work items")
)

// replyErrors maps the replies of the scripts to errors; nil means success.
var replyErrors = map[string]error{
	"claimed": nil, "committed": nil, drained: nil, "done": nil, "awaited": nil, "cancelled": nil, "sent": nil, "repeated": nil, "confirmed": nil, "kept": nil,
	"not_found": ErrNotFound, "lost": ErrLost, "ended": ErrEnded, "foreign": ErrOtherTeam, "taken": ErrClaimed, "claim_lost": ErrClaimLost, "unknown": ErrUnknownPosition,
	"no_item": ErrWorkItemNotFound, "exists": ErrWorkItemExists, "too_many": ErrTooManyWorkItems,
}

// IsGone reports whether a claim failed because the channel does not exist or has ended, or
// another runtime has it.
func IsGone(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrEnded) || errors.Is(err, ErrClaimed) || errors.Is(err, ErrClaimLost)
}

func replyError(word string) error {
	err, known := replyErrors[word]
	if !known {
		return fmt.Errorf("unexpected reply %q of a script", word)
	}
	return err
}

// Options configure a Runtime.
type Options struct {
	// Store describes how to connect to the service's store; from kv.ClientOption.
	Store rueidis.ClientOption
	// Name identifies this runtime among others and stays the same after a
	// restart. It is required.
	Name string
	// Lease is how long a claim outlives its runtime; default 15 s.
	Lease time.Duration
	// Limits apply to channels that Open opens; default
	// wire.DefaultChannelLimits.
	Limits wire.ChannelLimits
	// MinReplicas is the number of replicas that must have the writes of Open, Send, Await,
	// Commit, Cancel, End and Close before these return; see KV_MIN_REPLICAS in
	// docs/configuration.md. They wait for the replicas until their context ends.
	MinReplicas int
}

// Runtime is a call runtime's connection to the store. Its methods are safe for
// concurrent use. While the store is unavailable they wait until their context
// ends or Close is called.
type Runtime struct {
	opts    Options
	client  rueidis.Client
	topics  *kv.Topics
	clock   kv.Clock
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	tasks   *background.Group
	later   *background.Group // what is called later; Close ends it before ctx
	offers  offers
	scripts map[string]*rueidis.Lua // a second run after a lost reply changes nothing
	// replicated holds the scripts that wait for replicas and replace those in
	// scripts. It is empty without Options.MinReplicas.
	replicated map[string]*kv.ReplicatedScript
}

// defaultLease outlasts a short network failure. After a crash, other runtimes wait
// this long before they can claim the channel.
const defaultLease = 15 * time.Second

// maxRetryDelay bounds the exponential delay between two attempts to reconnect.
const maxRetryDelay = time.Second

// New connects to the store.
func New(opts Options) (*Runtime, error) {
	if opts.Name == "" {
		return nil, errors.New("missing runtime name: set Options.Name")
	}
	opts.Lease = cmp.Or(opts.Lease, defaultLease)
	opts.Limits = cmp.Or(opts.Limits, wire.DefaultChannelLimits())
	opts.Store.RetryDelay = kv.RetryDelay(func(attempts int) time.Duration {
		return min(maxRetryDelay, time.Millisecond<<min(attempts, 10))
	})
	client, err := rueidis.NewClient(opts.Store)
	if err != nil {
		return nil, fmt.Errorf("connect to the store: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &Runtime{
		opts: opts, client: client, topics: kv.NewTopics(), ctx: ctx, cancel: cancel,
		tasks: background.NewGroup(), later: background.NewGroup(), scripts: map[string]*rueidis.Lua{},
		offers: offers{last: "0-0", byID: map[string]*waitingOffer{}, byTeam: map[string]int{}},
	}
	for _, name := range []string{"claim", "check_claim", "revoke", "commit", "send", "confirm", "end_channel", "await", "cancel", "items", "touch"} {
		r.scripts[name] = rueidis.NewLuaScriptRetryable(kv.Script(name))
	}
	r.replicated = kv.ReplicatedScripts(opts.MinReplicas, "send", "await", "commit", "cancel", "end_channel", "claim")
	if !r.measureClock() {
		client.Close()
		return nil, errors.New("connect to the store: it does not tell its time")
	}
	_ = r.start(r.serveTopics)
	_ = r.start(func() {
		for background.Sleep(r.ctx, clockInterval) == nil {
			r.measureClock() // the former measurement is kept if it fails
		}
	})
	return r, nil
}

// clockInterval is how often the store's clock is compared with the local one.
const clockInterval = 2 * time.Second

// measureClock reports whether the store's clock is known. Without it, scripts would have no
// deadlines.
func (r *Runtime) measureClock() bool {
	ctx, cancel := context.WithTimeout(r.ctx, clockInterval)
	defer cancel()
	return r.clock.Measure(ctx, r.client)
}

// Close makes the calls of callLater at once, disconnects from the store and waits for all
// goroutines of the runtime. Calls that wait fail with ErrClosed. Claims expire with their lease; close a
// channel first to release its claim at once.
func (r *Runtime) Close() {
	r.later.Close()
	r.cancel(ErrClosed)
	r.tasks.Close()
	r.client.Close()
}

// start runs f, which ends with ctx, in a goroutine that Close waits for. It fails if the
// runtime is closed.
func (r *Runtime) start(f func()) error {
	return r.tasks.Go(r.ctx, func(context.Context) { f() })
}

func (r *Runtime) serveTopics() {
	delays := background.Backoff{Min: 500 * time.Millisecond, Max: 5 * time.Second}
	for r.ctx.Err() == nil {
		if served, _ := r.topics.Serve(r.ctx, r.client, nil); served {
			delays.Reset()
		}
		_ = background.Sleep(r.ctx, delays.Next())
	}
}

// ReportSpeech reports the usage of one text that the runtime synthesized, so that
// it counts for the team. Empty ID and At are filled in. If the outcome is unknown,
// report again with the same ID and At: a report is counted once per ID.
func (r *Runtime) ReportSpeech(ctx context.Context, report wire.SpeechReport) error {
	if report.TeamID == "" || report.Characters < 1 {
		return errors.New("report speech: TeamID and Characters are required")
	}
	report.ID = cmp.Or(report.ID, uuid.NewString())
	report.At = cmp.Or(report.At, time.Now().UnixMilli())
	encoded, err := json.Marshal(report)
	if err == nil {
		c := r.client
		err = c.Do(ctx, c.B().Xadd().Key(kv.ReportsStream).Id("*").FieldValue().FieldValue("report", string(encoded)).Build().ToRetryable()).Error()
	}
	return wrapStore("report speech", err)
}

// wrapStore is wrap for the error of a single command.
func wrapStore(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", operation, ErrUnavailable, err)
}

// wrap adds the operation to its error.
func wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", operation, err)
}
