// Package callruntime connects a call runtime to the service. A runtime accepts the
// sessions that browsers open, receives what happens on their channels, sends
// messages, awaits results of bots, models and tools, and ends channels.
//
// A Runtime is one WebSocket to the service. It reconnects by itself and resumes its
// channels: every entry arrives once and in order, and a request whose reply was lost
// is repeated without a second effect. While the service is unavailable, all calls
// wait until their context ends. Then their error says why the service cannot be reached.
//
// The entries of a channel arrive at the runtime's own pace. The runtime commits the
// position of each entry it has handled. After a restart, or if another runtime takes
// over, Receive continues after that position.
//
// Runtimes in other languages use the same protocol; see docs/runtime.md.
package callruntime

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// The errors that calls wrap. If the service rejects a call, errors.As finds a
// *wire.RuntimeError, and errors.Is the error below that has its code.
var (
	ErrNotFound       error = &wire.RuntimeError{Code: "NOT_FOUND", Message: "channel or work item not found"}
	ErrEnded          error = &wire.RuntimeError{Code: "CONVERSATION_ENDED", Message: "channel has ended"}
	ErrClaimed        error = &wire.RuntimeError{Code: "SESSION_IN_USE", Message: "channel is claimed by another runtime"}
	ErrWorkItemExists error = &wire.RuntimeError{Code: "IDEMPOTENCY_CONFLICT", Message: "another work item with this ID exists"}

	ErrUnauthorized = errors.New("the service rejects the key")
	ErrClaimLost    = errors.New("claim on the channel is lost")
	ErrClosed       = errors.New("channel or runtime is closed")
	// ErrLost means that the store has lost data of the channel that it had
	// acknowledged or delivered, for example in a failover. The channel stays usable.
	ErrLost = errors.New("the store has lost data of the channel")
)

// Options configure a Runtime. URL, Key and Name are required.
type Options struct {
	URL  string // of the service, such as https://api.example.com
	Key  string // an API key with the scope RUN_CALLS or RUN_ALL_CALLS, or a console JWT
	Name string // identifies this runtime among others and stays the same after a restart
	// Resume is how long claims outlive a lost connection; default 2 s, at most 60 s.
	// Sessions of a runtime that has crashed are offered to others after this time.
	Resume time.Duration
	TLS    *tls.Config // of connections to an https URL; default: that of the Go library
	// Dial opens the network connection, for example through a tunnel; default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger // gets a warning when the service cannot be reached; default: slog.Default()
}

// Runtime is a call runtime's connection to the service. Its methods are safe for
// concurrent use.
type Runtime struct {
	opts    Options
	ctx     context.Context // ends with Close, or if the service rejects the runtime for good
	cancel  context.CancelCauseFunc
	running sync.WaitGroup

	mu        sync.Mutex    // also guards the channels and the socket
	socket    *socket       // nil: not connected
	connected chan struct{} // closed when there is a socket
	outage    error         // why the last attempt to connect failed; nil if there was none since a connection
	previous  string        // ID of the last connection
	lastID    int64         // of a request
	channels  map[string]*Channel
}

// New starts to connect to the service. Calls wait for the connection. They fail with
// ErrUnauthorized if the service rejects the key.
func New(opts Options) (*Runtime, error) {
	target, err := url.Parse(opts.URL)
	switch {
	case err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https":
		return nil, fmt.Errorf("invalid Options.URL %q: use an address such as https://api.example.com", opts.URL)
	case opts.Key == "" || opts.Name == "":
		return nil, errors.New("Options.Key and Options.Name are required")
	}
	target.Scheme = "ws" + target.Scheme[len("http"):]
	opts.URL, opts.Resume = target.JoinPath(wire.RuntimePath).String(), cmp.Or(opts.Resume, 2*time.Second)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	r := &Runtime{opts: opts, connected: make(chan struct{}), lastID: helloID, channels: map[string]*Channel{}}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.running.Go(r.run)
	return r, nil
}

// Close disconnects and waits for all goroutines of the runtime. Calls that wait fail
// with ErrClosed. Claims expire after Options.Resume; close a channel first to release
// its claim at once.
func (r *Runtime) Close() {
	r.mu.Lock() // Commit starts no goroutine afterwards
	r.cancel(ErrClosed)
	r.mu.Unlock()
	r.running.Wait()
}

// Accept waits for an unclaimed session, claims it and returns its channel, with Session
// set. Empty lists in a select all sessions. Exactly one runtime gets a session, and those
// that wait longest come first. If that runtime dies, the session is offered again.
// Concurrent calls of Accept tell the service how many sessions the runtime has capacity for.
func (r *Runtime) Accept(ctx context.Context, a wire.Accept) (*Channel, error) {
	a.Request = wire.Request{Op: wire.OpAccept}
	q, err := r.call(ctx, r.ctx, a)
	return q.claimed, err
}

// Open opens a channel without a browser session, such as a phone call, and claims it. If
// the channel is already open for the same team and endpoint, Open claims it. It fails with
// ErrClaimed if another runtime has it.
func (r *Runtime) Open(ctx context.Context, channelID string, o wire.Open) (*Channel, error) {
	o.Request = wire.Request{Op: wire.OpOpen, Channel: channelID}
	q, err := r.call(ctx, r.ctx, o)
	return q.claimed, err
}

// ReportSpeech reports the usage of one text that the runtime synthesized, so that it
// counts for the team. Empty ID, At and TeamID are filled in. If the outcome is
// unknown, report again with the same ID and At: a report is counted once per ID.
func (r *Runtime) ReportSpeech(ctx context.Context, report wire.SpeechReport) error {
	report.ID, report.At = cmp.Or(report.ID, uuid.NewString()), cmp.Or(report.At, time.Now().UnixMilli())
	_, err := r.call(ctx, r.ctx, wire.Report{Request: wire.Request{Op: wire.OpReport}, Reports: []wire.SpeechReport{report}})
	return err
}

// request is a request that was sent on a connection.
type request struct {
	wire.Request
	body      []byte        // the frame without ID
	done      chan struct{} // closed when the reply has arrived or the connection has ended
	reply     *wire.Frame   // nil: the connection has ended
	claimed   *Channel      // by accept or open
	abandoned bool          // an accept or open whose caller no longer waits
}

func (q *request) claims() bool { return q.Op == wire.OpAccept || q.Op == wire.OpOpen }

// body is the content of a request.
type body interface{ Head() wire.Request }

// call sends a request and waits for the reply, until ctx or life ends. It repeats the request
// if the connection is lost, and while the service is unavailable. Concurrent calls take effect
// in any order. If call fails, it returns an empty request.
func (r *Runtime) call(ctx, life context.Context, b body) (*request, error) {
	content, err := encode(b)
	if err != nil {
		return &request{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exchange(ctx, life, b.Head(), content)
}

func encode(b body) ([]byte, error) {
	content, err := json.Marshal(b)
	if err == nil && len(content) > wire.MaxRequest {
		err = fmt.Errorf("request too large: %d bytes, maximum %d", len(content), wire.MaxRequest)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.Head().Op, err)
	}
	return content, nil
}

// exchange is call for an encoded request. The caller holds mu until the request is sent, so that
// no later one overtakes it.
func (r *Runtime) exchange(ctx, life context.Context, head wire.Request, content []byte) (_ *request, err error) {
	for err == nil && ctx.Err() == nil && life.Err() == nil {
		s := r.socket
		if s == nil {
			r.wait(ctx, life, r.connected)
			continue
		}
		q := r.send(&request{Request: head, body: content, done: make(chan struct{})})
		r.wait(ctx, life, q.done)
		switch delay, unavailable := q.reply.RetryAfter(); {
		case s.pending[q.ID] == q: // ctx or life has ended
			if q.abandoned = q.claims(); !q.abandoned {
				delete(s.pending, q.ID)
			}
		case unavailable:
			if head.Channel != "" && head.Op != wire.OpCommit && !head.Retry { // later requests may overtake a commit
				head.Retry = true
				content = append([]byte(`{"retry":true,`), content[1:]...)
			}
			pause, cancel := context.WithTimeout(life, delay)
			r.wait(ctx, pause, nil)
			cancel()
		case q.reply == nil: // the request is repeated on the next connection
		case q.reply.Error != nil:
			err = q.reply.Error
		default:
			return q, nil
		}
	}
	if err == nil && ctx.Err() != nil && r.outage != nil {
		err = fmt.Errorf("%w: the service cannot be reached: %w", context.Cause(ctx), r.outage)
	}
	return &request{}, fmt.Errorf("%s: %w", head.Op, cmp.Or(err, context.Cause(ctx), context.Cause(life)))
}

// wait unlocks mu until done is closed, or ctx or life ends.
func (r *Runtime) wait(ctx, life context.Context, done <-chan struct{}) {
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-done:
	case <-ctx.Done():
	case <-life.Done():
	}
}

// send sends a request. An accept or open takes over an equal one that is abandoned. The caller
// holds mu.
func (r *Runtime) send(q *request) *request {
	for _, p := range r.socket.pending {
		if q.claims() && p.abandoned && bytes.Equal(p.body, q.body) {
			p.abandoned = false
			return p
		}
	}
	r.lastID++
	q.ID = r.lastID
	r.socket.pending[q.ID] = q
	r.socket.out <- fmt.Appendf(nil, `{"id":%d,%s`, q.ID, q.body[1:])
	return q
}

// claim adds the channel of an accept or open. If no caller waits for it, the claim is released.
// The caller holds mu.
func (r *Runtime) claim(q *request) {
	c := &Channel{runtime: r, changed: make(chan struct{})}
	if err := json.Unmarshal(q.reply.OK, &c.Claimed); err != nil || c.Channel == "" {
		q.reply.Error = &wire.RuntimeError{Code: "INTERNAL_ERROR", Message: "the reply is not a claim"}
		return
	}
	c.ctx, c.cancel = context.WithCancelCause(r.ctx)
	c.epoch, c.lose = context.WithCancelCause(c.ctx)
	c.ID, c.newest, c.lostAt = c.Channel, c.Position, c.LostAt
	if old := r.channels[c.ID]; old != nil && old.Claim == c.Claim { // opened twice
		c = old
	} else if old != nil {
		old.last = "" // so that the cause is ErrClaimLost: the new claim commits the end
		old.close(ErrClaimLost)
	}
	q.claimed, r.channels[c.ID] = c, c
	release := q.abandoned
	for _, p := range r.socket.pending {
		release = release && (p == q || p.Op != wire.OpOpen || p.Channel != c.ID) // unless the reply to another open follows
	}
	if release {
		r.running.Go(func() { _ = c.Close(r.ctx) })
	}
}
