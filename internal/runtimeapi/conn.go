package runtimeapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/singleflight"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
)

const (
	// requestTimeout bounds a request, from its arrival.
	requestTimeout = 10 * time.Second
	// maxMalformed is the number of malformed requests in a row that close a connection.
	maxMalformed = 10
)

// Conn is the connection of a call runtime. Its socket calls Handle from one goroutine.
type Conn struct {
	service *Service
	calls   *calls.Runtime
	params  Params
	socket  channel.Socket
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc
	running sync.WaitGroup // goroutines of requests and pushes

	// Set by hello, before other goroutines read them.
	id       string
	key      string        // the credential of hello; empty: that of the handshake
	team     string        // the team of the credential
	onlyTeam string        // whose channels the runtime may have; empty: every team's
	name     string        // of the runtime
	resume   time.Duration // how long the claims outlive the connection

	greeted    bool // read by Handle only
	malformed  int  // requests in a row; used by Handle only
	helloTimer *time.Timer
	slots      chan struct{} // one element for each queued request

	recoveries singleflight.Group // one at a time of each claim

	mu       sync.Mutex
	closed   bool
	claims   map[string]*claim       // by channel
	queues   map[string]*queue       // by channel
	accepts  map[*calls.Demand]int64 // outstanding, with the bytes that they take from the budget of requests
	released map[string]bool         // sessions that the runtime has just released
	ready    []*claim                // claims that wait for a worker
	workers  int                     // goroutines that push entries
	unsent   int64                   // bytes of entries since the socket was last idle
	stalled  []*claim                // claims that wait until the socket is idle
}

// Start is called before Handle.
func (c *Conn) Start(socket channel.Socket) {
	c.mu.Lock() // Drain may come first
	c.socket = socket
	c.mu.Unlock()
	c.helloTimer = time.AfterFunc(helloTimeout, func() {
		c.fail(fault.New(fault.Validation, "The first request must be hello, within %s.", helloTimeout), channel.CloseInvalidFrames)
	})
}

// authorize verifies a credential and its scope.
func (c *Conn) authorize(ctx context.Context, key string) (auth.Principal, error) {
	p, err := c.params.Authenticate(ctx, key)
	if err == nil {
		err = p.Require(auth.RunCalls)
	}
	return p, err
}

// fail reports why the connection is closed, and closes it.
func (c *Conn) fail(err error, code channel.CloseCode) {
	c.push(wire.Push{Event: wire.PushError, Error: c.publicError(err)})
	c.socket.Close(code)
}

func (c *Conn) push(p wire.Push) {
	frame, _ := json.Marshal(p) // of plain types
	c.write(frame)
}

func (c *Conn) write(frame []byte) {
	if !c.socket.Send(frame) {
		c.socket.Close(channel.CloseSlowReader)
	}
}

func (c *Conn) reply(id int64, ok any, err error) {
	reply := wire.Reply{ID: id, OK: jsontext.Value("{}")}
	if err == nil && ok != nil {
		reply.OK, err = json.Marshal(ok)
	}
	if err != nil {
		reply.OK, reply.Error = nil, c.publicError(err)
	}
	frame, _ := json.Marshal(reply) // of plain types
	c.write(frame)
}

// publicError returns what the runtime may know of an error. It logs internal errors.
func (c *Conn) publicError(err error) *wire.RuntimeError {
	public := fault.From(translate(err))
	if public.Code == fault.Internal && c.ctx.Err() == nil {
		c.service.Log.Error("request of a runtime failed", "team_id", c.team, "error", err)
	}
	e := &wire.RuntimeError{Code: string(public.Code), Message: public.Message}
	details := public.Details
	if details == nil && public.RetryAfter > 0 {
		details = map[string]int64{"retryAfterMs": public.RetryAfter.Milliseconds()}
	}
	if details != nil {
		e.Details, _ = json.Marshal(details) // of plain types
	}
	return e
}

// translate returns the public error for an error of package calls.
func translate(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, calls.ErrNotFound), errors.Is(err, calls.ErrOtherTeam):
		return fault.New(fault.NotFound, "Channel not found.").WithCause(err)
	case errors.Is(err, calls.ErrClaimLost), errors.Is(err, calls.ErrLost), errors.Is(err, calls.ErrClosed), errors.Is(err, calls.ErrReplaced):
		return errNotClaimed.WithCause(err)
	case errors.Is(err, calls.ErrWorkItemNotFound):
		return fault.New(fault.NotFound, "Work item not found, or its result is already on the stream.").WithCause(err)
	case errors.Is(err, calls.ErrEnded):
		return fault.New(fault.ConversationEnded, "The channel has ended.").WithCause(err)
	case errors.Is(err, calls.ErrClaimed):
		return fault.New(fault.SessionInUse, "Another runtime has claimed the channel.").WithCause(err)
	case errors.Is(err, calls.ErrWorkItemExists):
		return fault.New(fault.Idempotency, "Another work item with this ID exists. Use another workItemId, or the same kind and scope.").WithCause(err)
	case errors.Is(err, calls.ErrTooManyWorkItems):
		return fault.New(fault.RateLimitExceeded, "The channel has %d open work items, or has had as many channel credentials. Wait for answers, or cancel work items.", calls.MaxWorkItems).WithCause(err)
	case errors.Is(err, calls.ErrTooLarge):
		return fault.New(fault.PayloadTooLarge, "A message must have at most %d bytes.", calls.MaxMessageBytes).WithCause(err)
	case errors.Is(err, calls.ErrUnknownPosition):
		return errPosition.WithCause(err)
	case errors.Is(err, calls.ErrFull), errors.Is(err, calls.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fault.Unavailable("The key-value store", err)
	}
	return err
}

var (
	errNotClaimed = fault.New(fault.NotFound, "This connection has no claim on the channel. Open it, or accept a session.")
	errPosition   = fault.New(fault.Validation, "/position: No entry with this position was pushed. Commit the position of an entry that you received.")
)

// Handle handles a frame. It waits while too many requests are queued, so that the
// runtime's writes wait too.
func (c *Conn) Handle(_ context.Context, frame []byte) {
	envelope, err := decodeEnvelope(frame)
	if !c.greeted {
		c.greeted = c.greet(envelope, err, frame)
		return
	}
	var r *request
	if err == nil {
		r, err = c.prepare(envelope, frame)
	}
	if err != nil {
		c.reply(envelope.ID, nil, err)
		if c.malformed++; c.malformed == maxMalformed {
			c.fail(fault.New(fault.Validation, "%d malformed requests in a row.", maxMalformed), channel.CloseInvalidFrames)
		}
		return
	}
	c.malformed = 0
	if r != nil {
		r.Request, r.deadline, r.bytes = envelope, time.Now().Add(requestTimeout), int64(len(frame))
		c.enqueue(r)
	}
}

// HandleBinary rejects a binary frame, like one that is not JSON.
func (c *Conn) HandleBinary(ctx context.Context) { c.Handle(ctx, nil) }

// FrameBytes returns the maximum size of the next frame. Only the first frame of a runtime
// that is known can be large: it lists claims.
func (c *Conn) FrameBytes() int64 {
	if !c.greeted && c.params.Identified {
		return helloBytes
	}
	return frameBytes
}

// Flush is called when all received bytes were handled.
func (c *Conn) Flush(context.Context) {}

// AllowFrame is called for control frames.
func (c *Conn) AllowFrame() bool { return true }

// UntilHeartbeat returns when to ping the runtime.
func (c *Conn) UntilHeartbeat() time.Duration { return PingInterval }

// Heartbeat is called with every ping.
func (c *Conn) Heartbeat(context.Context) {}

// Drain tells the runtime that the instance shuts down. A connection that has not started
// is only closed.
func (c *Conn) Drain(within time.Duration) {
	c.mu.Lock()
	started := c.socket != nil
	c.mu.Unlock()
	if started {
		c.push(wire.Push{Event: wire.PushDrain, WithinMs: new(within.Milliseconds())})
	}
}

// Close ends the connection. Its claims are kept for the time that hello has named.
func (c *Conn) Close() {
	if c.helloTimer != nil {
		c.helloTimer.Stop()
	}
	c.mu.Lock()
	c.closed = true
	claims := c.claims
	c.claims, c.ready, c.stalled = nil, nil, nil
	c.mu.Unlock()
	c.cancel()
	c.withdrawAccepts()
	for _, cl := range claims {
		cl.stop()
	}
	c.running.Wait()
	c.flushCommits(claims)
	c.service.unregister(c, claims)
}

// withdrawAccepts lets other connections have the sessions that this one waits for.
func (c *Conn) withdrawAccepts() {
	c.mu.Lock()
	accepts := c.accepts
	c.accepts = map[*calls.Demand]int64{}
	c.mu.Unlock()
	for d, bytes := range accepts {
		c.calls.Withdraw(d)
		c.service.requestBytes.Return(c.team, bytes)
	}
}

// register adds a connection that has said hello.
func (s *Service) register(ctx context.Context, c *Conn) error {
	if _, _, err := c.calls.KeepConnections(ctx, s.lifetime(c)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = struct{}{}
	s.connectionGauge.Inc()
	return nil
}

// unregister removes a connection. Its claims live on for its resume time.
func (s *Service) unregister(c *Conn, claims map[string]*claim) {
	s.mu.Lock()
	_, registered := s.conns[c]
	delete(s.conns, c)
	s.mu.Unlock()
	if !registered {
		return
	}
	s.connectionGauge.Dec()
	s.claimGauge.Sub(float64(len(claims)))
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	// Another instance may have taken the connection for dead and forgotten its claims before it
	// has made some of them again. Claims that cannot be recorded expire with their lease.
	err := c.calls.RecordClaims(ctx, c.id, records(claims)...)
	if errors.Is(err, calls.ErrReplaced) && c.calls.Sweep(ctx, c.id) == nil { // the runtime does not know claims that it has not resumed
		return
	}
	_, _, _ = c.calls.KeepConnections(ctx, calls.Lifetime{ConnectionID: c.id, Left: c.resume}) // otherwise it expires a little later
}
