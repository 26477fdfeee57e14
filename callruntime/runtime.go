// Package callruntime connects a call runtime to the service. A runtime accepts the
// sessions that browsers open, receives what happens on their channels, sends
// messages, awaits results of bots, models and tools, and ends channels.
//
// A Runtime is one WebSocket to the service. It reconnects by itself and resumes its
// channels: every entry arrives once and in order, and a request whose reply was lost
// is repeated without a second effect. While the service is unavailable, all calls
// wait until their context ends.
//
// The entries of a channel arrive at the runtime's own pace. The runtime commits the
// position of each entry it has handled. After a restart, or if another runtime takes
// over, Receive continues after that position.
//
// Runtimes in other languages use the same protocol; see docs/runtime.md.
package callruntime

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// The errors that calls wrap. A call that the service rejects also wraps a
// *wire.RuntimeError with the code and message of the service.
var (
	ErrUnauthorized    = errors.New("the service rejects the key")
	ErrNotFound        = errors.New("channel not found")
	ErrEnded           = errors.New("channel has ended")
	ErrClaimed         = errors.New("channel is claimed by another runtime")
	ErrClaimLost       = errors.New("claim on the channel is lost")
	ErrUnknownPosition = errors.New("position was not received")
	ErrClosed          = errors.New("channel or runtime is closed")
	// ErrLost means that the store has lost data of the channel that it had
	// acknowledged, for example in a failover. The channel stays usable.
	ErrLost = errors.New("the store has lost data of the channel")

	ErrWorkItemNotFound = errors.New("work item not found")
	ErrWorkItemExists   = errors.New("another work item with this ID exists")
)

// errorsByCode are the errors that a code of the service means.
var errorsByCode = map[string]error{
	"UNAUTHORIZED": ErrUnauthorized, "FORBIDDEN": ErrUnauthorized, "NOT_FOUND": ErrNotFound,
	"CONVERSATION_ENDED": ErrEnded, "SESSION_IN_USE": ErrClaimed, "IDEMPOTENCY_CONFLICT": ErrWorkItemExists,
}

// unavailable is the code of requests that can be repeated later.
const unavailable = "SERVICE_UNAVAILABLE"

// Options configure a Runtime. URL, Key and Name are required.
type Options struct {
	URL  string // of the service, such as https://api.example.com
	Key  string // an API key with the scope RUN_CALLS or RUN_ALL_CALLS, or a console JWT
	Name string // identifies this runtime among others and stays the same after a restart
	// Resume is how long claims outlive a lost connection; default 2 s, at most 60 s.
	// Sessions of a runtime that has crashed are offered to others after this time.
	Resume time.Duration
	TLS    *tls.Config // of connections to an https URL; default: that of the Go library
}

// Runtime is a call runtime's connection to the service. Its methods are safe for
// concurrent use.
type Runtime struct {
	opts     Options
	endpoint string          // URL of the WebSocket
	ctx      context.Context // ends with Close, or if the service rejects the runtime for good
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup

	mu         sync.Mutex
	current    *socket       // nil: not connected
	connection string        // ID of the last connection
	changed    chan struct{} // closed when current is set
	channels   map[string]*Channel
}

// New starts to connect to the service. Calls wait for the connection. They fail with
// ErrUnauthorized if the service rejects the key.
func New(opts Options) (*Runtime, error) {
	target, err := url.Parse(opts.URL)
	switch {
	case err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https":
		return nil, fmt.Errorf("invalid Options.URL %q: use an address such as https://api.example.com", opts.URL)
	case opts.Key == "":
		return nil, errors.New("missing Options.Key: use an API key with the scope RUN_CALLS")
	case opts.Name == "":
		return nil, errors.New("missing Options.Name: use a name that stays the same after a restart")
	}
	target.Scheme = "ws" + strings.TrimPrefix(target.Scheme, "http")
	r := &Runtime{opts: opts, endpoint: target.JoinPath(wire.RuntimePath).String(), changed: make(chan struct{}), channels: map[string]*Channel{}}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.running.Go(r.run)
	return r, nil
}

// Close disconnects and waits for all goroutines of the runtime. Calls that wait fail
// with ErrClosed. Claims expire after Options.Resume; close a channel first to release
// its claim at once.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.cancel(ErrClosed) // start does nothing from now on
	r.mu.Unlock()
	r.running.Wait()
}

// start runs f in a goroutine that Close waits for, unless the runtime is closed. The
// caller holds mu.
func (r *Runtime) start(f func()) {
	if r.ctx.Err() == nil {
		r.running.Go(f)
	}
}

// Delays between attempts to connect. Claims must survive a few attempts.
const (
	minDelay = 50 * time.Millisecond
	maxDelay = time.Second
)

// run keeps the runtime connected until it is closed or rejected for good. If the
// service drains a connection, it is used until the next one is open.
func (r *Runtime) run() {
	var s *socket // the newest connection; nil: none yet
	for delay := minDelay; r.ctx.Err() == nil; delay = min(2*delay, maxDelay) {
		next, err := r.connect()
		if err == nil {
			s.close()
			s = next
			since := time.Now()
			select {
			case <-s.draining:
			case <-s.done:
				err = s.err
			case <-r.ctx.Done():
			}
			if time.Since(since) > maxDelay {
				delay = minDelay
			}
		}
		if errors.As(err, new(*finalError)) {
			r.cancel(err)
		}
		sleep(r.ctx, delay/2+rand.N(delay)) //nolint:gosec // spreads the runtimes of an instance that restarts
	}
	s.close()
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// detach makes requests wait for the next connection, and returns the claims that it
// has to resume.
func (r *Runtime) detach() (claims []wire.Resume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = nil
	for _, c := range r.channels {
		claims = append(claims, c.resumption())
	}
	return claims
}

// attach resumes the channels on a new connection and lets requests use it.
func (r *Runtime) attach(s *socket, ok jsontext.Value) error {
	var welcome wire.Welcome
	if err := json.Unmarshal(ok, &welcome); err != nil {
		return fmt.Errorf("unexpected reply: %w", err)
	}
	r.connection = welcome.Connection
	s.silence = time.Duration(welcome.PingIntervalMs) * time.Millisecond * 5 / 2
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.channels
	r.channels = make(map[string]*Channel, len(lost))
	for _, state := range welcome.Resumed {
		if c := lost[state.Channel]; c != nil {
			c.resume(s, state)
			r.channels[c.ID] = c
			delete(lost, c.ID)
		}
	}
	for _, c := range lost {
		c.cancel(ErrClaimLost)
	}
	r.current = s
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// register adds a channel that was claimed on a connection. If no caller waits for it, or
// the connection is about to be replaced, it releases the claim.
func (r *Runtime) register(s *socket, claimed wire.Claimed, abandoned bool) (*Channel, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.channels[claimed.Channel]
	if old != nil && old.claim == claimed.Claim {
		return old, nil // opened twice
	}
	if abandoned || r.current != s {
		q := wire.Request{Op: wire.OpRelease, Channel: claimed.Channel}
		r.start(func() { _ = s.do(r.ctx, request{head: &q, body: &q}) }) // if it fails, the claim expires
		return nil, errDisconnected
	}
	if old != nil {
		old.cancel(ErrClaimLost)
	}
	c := newChannel(r, s, claimed)
	r.channels[c.ID] = c
	r.start(c.sendQueued)
	return c, nil
}

// connected waits for a connection.
func (r *Runtime) connected(ctx context.Context) (*socket, error) {
	for {
		r.mu.Lock()
		s, changed := r.current, r.changed
		r.mu.Unlock()
		if s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		}
	}
}

// call sends a request until it is replied, on as many connections as that takes.
func (r *Runtime) call(ctx context.Context, q request) error {
	for {
		s, err := r.connected(ctx)
		if err == nil && q.ready != nil {
			err = q.ready(ctx, s)
		}
		if err == nil {
			err = s.do(ctx, q)
		}
		var rejected *wire.RuntimeError
		switch {
		case errors.Is(err, errDisconnected):
		case errors.As(err, &rejected) && rejected.Code == unavailable:
			if sleep(ctx, maxDelay/4); ctx.Err() != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
		case rejected != nil && errorsByCode[rejected.Code] != nil:
			return fmt.Errorf("%w: %w", errorsByCode[rejected.Code], err)
		default:
			return err
		}
	}
}

// claim sends a request whose reply is a wire.Claimed.
func (r *Runtime) claim(ctx context.Context, q request) (*Channel, error) {
	got := make(chan *Channel, 1) // the reply may arrive when ctx has ended
	q.claims = true
	q.onReply = func(s *socket, ok jsontext.Value, abandoned bool) error {
		var claimed wire.Claimed
		if err := json.Unmarshal(ok, &claimed); err != nil || claimed.Channel == "" {
			return errors.Join(errors.New("unexpected reply: not a claim"), err)
		}
		c, err := r.register(s, claimed, abandoned)
		if err == nil {
			select {
			case got <- c:
			default: // repeated
			}
		}
		return err
	}
	if err := r.call(ctx, q); err != nil {
		return nil, fmt.Errorf("%s: %w", q.head.Op, err)
	}
	return <-got, nil
}

// Filter selects the sessions that Accept returns. Empty lists select all.
type Filter struct {
	Endpoints []string // IDs of endpoints
	Modes     []string // such as chat or audio
}

// Accept waits for an unclaimed session, claims it and returns its channel, with Offer
// set. Exactly one runtime gets a session, and those that wait longest come first. If
// that runtime dies, the session is offered again. Concurrent calls of Accept tell the
// service how many sessions the runtime has capacity for.
func (r *Runtime) Accept(ctx context.Context, f Filter) (*Channel, error) {
	q := &wire.Accept{Request: wire.Request{Op: wire.OpAccept}, Endpoints: f.Endpoints, Modes: f.Modes}
	return r.claim(ctx, request{head: &q.Request, body: q, filter: fmt.Sprint(f)})
}

// OpenOptions describe a channel without a browser session, such as a phone call.
type OpenOptions struct {
	ChannelID, EndpointID       string
	TeamID                      string // default: the team of the key
	Mode, CallID, TransactionID string
	Profile                     []byte // the gatewayProfile as JSON, fixed for the channel's life
}

// Open opens a channel and claims it. If the channel is already open for the same team
// and endpoint, Open claims it. It fails with ErrClaimed if another runtime has it.
func (r *Runtime) Open(ctx context.Context, o OpenOptions) (*Channel, error) {
	q := &wire.Open{
		Request: wire.Request{Op: wire.OpOpen, Channel: o.ChannelID}, Team: o.TeamID, Endpoint: o.EndpointID,
		Mode: o.Mode, Profile: o.Profile, CallID: o.CallID, TransactionID: o.TransactionID,
	}
	return r.claim(ctx, request{head: &q.Request, body: q})
}

// ReportSpeech reports the usage of one text that the runtime synthesized, so that it
// counts for the team. Empty ID, At and TeamID are filled in. If the outcome is
// unknown, report again with the same ID and At: a report is counted once per ID.
func (r *Runtime) ReportSpeech(ctx context.Context, report wire.SpeechReport) error {
	if report.ID == "" {
		report.ID = uuid.NewString()
	}
	report.At = cmp.Or(report.At, time.Now().UnixMilli())
	q := &wire.Report{Request: wire.Request{Op: wire.OpReport}, Reports: []wire.SpeechReport{report}}
	if err := r.call(ctx, request{head: &q.Request, body: q}); err != nil {
		return fmt.Errorf("report speech: %w", err)
	}
	return nil
}
