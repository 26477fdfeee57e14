package channel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// badFramesAllowed is how many bad frames in a row a socket survives.
const badFramesAllowed = 9

// storeTimeout bounds work that no request waits for.
const storeTimeout = 5 * time.Second

// Socket is the transport under a connection. Its methods never block.
type Socket interface {
	// Send queues frames, to be written together; false: the queue is full.
	Send(frames ...[]byte) bool
	// Replay queues history whatever is queued already: it has a bound of its
	// own, and who was away for long could not come back otherwise.
	Replay(frames [][]byte)
	// SendAudio queues a frame that is dropped first when the queue fills.
	SendAudio(frame []byte)
	// Close sends what is queued, then the code, and ends the socket. Only
	// the first call counts.
	Close(code CloseCode)
}

// Connection is one socket's part in a session. Handle and Flush are called by the
// socket, one at a time, Beat by anybody, Live's methods by the hub.
type Connection struct {
	service  *Service
	session  SessionInfo
	id       string
	attached AttachResult
	start    Cursor // what the browser is told it starts at
	resuming bool
	// unsure says that the session may not stand before the runtimes, since
	// whoever was told to offer it failed, or was a connection before this one.
	unsure atomic.Bool
	rate   *rate.Limiter
	bad    int // bad frames in a row
	taken  batch

	stopListening func()

	mu         sync.Mutex
	socket     Socket // nil: not started yet
	position   Cursor // of the last message that was queued
	recovering bool
	behind     bool // something came that could not be delivered in its place
	doubted    bool // what was heard before it was started may mean its end
}

func newConnection(s *Service, session SessionInfo, id string) *Connection {
	session.Profile = nil // the channel's from its opening on, and not to be held for the connection's life
	perSecond := s.limits.FramesPerSecond
	c := &Connection{service: s, session: session, id: id, rate: rate.NewLimiter(rate.Limit(perSecond), perSecond)}
	c.unsure.Store(true)
	return c
}

// SessionID is the session it is a socket of.
func (c *Connection) SessionID() string { return c.session.ID }

// Start gives the connection its socket: the ready frame, what was missed, and
// from then on what is live.
func (c *Connection) Start(socket Socket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket = socket
	a, limits := c.attached, c.service.limits
	c.send(wire.TypeStatus, c.frame(wire.TypeStatus, ready{
		Event: "ready", ConnectionID: c.id, StreamID: c.start.String(), Resumed: c.resuming && a.Recovered,
		PingIntervalMs: limits.PingIntervalMs, MaxMessageBytes: limits.FrameBytes,
		TextChat: a.TextChat, ExpiresAt: c.session.ExpiresAt.UTC(), ReconnectJitterMs: limits.ReconnectJitter.Milliseconds(),
	}))
	c.replay(a.Missed)
	if c.resuming {
		outcome := "recovered"
		if !a.Recovered {
			outcome = "failed"
		}
		c.service.metrics.recoveries.WithLabelValues(outcome).Inc()
		c.send(wire.TypeReconnect, c.frame(wire.TypeReconnect, recovery{a.Recovered, len(a.Missed)}))
	}
	c.attached.Missed = nil // not to be held for the connection's life
	if c.behind {
		c.catchUp()
	}
	if c.doubted {
		c.confirm()
	}
}

// Close ends the connection's part. It is called once the socket is gone.
func (c *Connection) Close() {
	c.stopListening()
	c.service.records.Touch(c.session.ID)
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if err := c.service.store.Detach(ctx, c.session.ID, c.id, c.entry(wire.Entry{Kind: wire.KindSession, Event: "disconnected"})); err != nil {
		// The lease ends by itself.
		c.service.log.WarnContext(ctx, "a connection's end could not be noted", "session_id", c.session.ID, "error", err)
	}
}

// UntilHeartbeat is when Beat is due: with the next ping, or at the session's end.
func (c *Connection) UntilHeartbeat() time.Duration {
	return max(0, min(c.service.limits.PingInterval(), c.session.ExpiresAt.Sub(c.service.now())))
}

// Heartbeat is called with every ping: it keeps the session in this connection's
// hands, and ends a connection that has lost it. While the store is away the
// socket stays, for the lease may outlast it.
func (c *Connection) Heartbeat(ctx context.Context) {
	if c.timeOver() {
		c.close(CloseExpired)
		return
	}
	outcome, offer, err := c.service.store.Renew(ctx, c.session.ID, c.id, c.service.lease(), c.unsure.Load())
	switch {
	case err != nil:
		c.unsure.Store(true)
	case offer:
		c.offer(ctx)
	default:
		c.unsure.Store(false)
		c.lost(outcome)
	}
}

// offer puts the session before the runtimes. When that fails the next beat does
// it again.
func (c *Connection) offer(ctx context.Context) {
	err := c.service.store.Offer(ctx, c.session.Offer)
	c.unsure.Store(err != nil)
	if err != nil {
		c.service.log.WarnContext(ctx, "a session could not be offered to a runtime yet", "session_id", c.session.ID, "error", err)
	}
}

// lost ends a connection that no longer has the session, and says why.
func (c *Connection) lost(outcome Outcome) {
	switch outcome {
	case NotOwner:
		c.close(CloseReplaced)
	case Ended:
		c.ended()
	case Lost:
		c.close(CloseHistoryLost)
	}
}

// ended ends the connection with its channel. A sweeper may be the first to notice
// that the session's time is over; the browser is told that, all the same.
func (c *Connection) ended() {
	code := CloseEnded
	if c.timeOver() {
		code = CloseExpired
	}
	c.close(code)
}

func (c *Connection) timeOver() bool { return !c.service.now().Before(c.session.ExpiresAt) }

// refuse answers a frame with an error.
func (c *Connection) refuse(e *fault.Error, relatesTo string) {
	c.service.metrics.refused.WithLabelValues(string(e.Code)).Inc()
	issues, _ := e.Details.([]fault.Issue)
	c.reply(wire.TypeError, problem{Code: e.Code, Message: e.Message, Fatal: false, RelatesTo: relatesTo, Issues: issues})
}

func (c *Connection) reply(t wire.MessageType, payload any) {
	frame := c.frame(t, payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(t, frame)
}

func (c *Connection) close(code CloseCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.socket == nil {
		c.doubted = true
		return
	}
	c.socket.Close(code)
}

// send queues frames of one type. The caller holds mu.
func (c *Connection) send(t wire.MessageType, frames ...[]byte) {
	c.service.metrics.frames.WithLabelValues(string(t), string(wire.ToBrowser)).Add(float64(len(frames)))
	c.queue(frames...)
}

func (c *Connection) queue(frames ...[]byte) {
	if len(frames) > 0 && !c.socket.Send(frames...) {
		c.socket.Close(CloseSlowReader)
	}
}
