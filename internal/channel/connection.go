package channel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/fault"
)

const (
	// storeTimeout bounds background calls to the stores.
	storeTimeout = 5 * time.Second
	// attachTimeout bounds Attach. After it, Attach cannot take effect any more.
	attachTimeout = 3 * time.Second
	// cancelInterval is the time between two attempts to cancel Attach.
	cancelInterval = 100 * time.Millisecond
	// detachAttempts bounds how often a failed Detach is retried. It covers an outage of a
	// minute.
	detachAttempts = int(time.Minute / storeTimeout)
	// confirmDelay is the time after which a detached connection is detached again, to
	// detect that a failover lost data. It exceeds the replication lag.
	confirmDelay = 20 * time.Second
	// minConfirmDelay is the minimum if the instance stops first. An earlier check would detect nothing.
	minConfirmDelay = time.Second
)

// Socket is the transport of a connection. Its methods do not block.
type Socket interface {
	// Send queues frames, if any, to be written together. It returns false if
	// they do not fit into the queue.
	Send(frames ...[]byte) bool
	// AfterWrites calls f once all queued frames are written, so that history is
	// read as fast as the client takes it. It does not call f if the socket is
	// closed before. f must not block.
	AfterWrites(f func())
	// SendAudio queues a frame that may be dropped when the queue is full.
	SendAudio(frame []byte)
	// Close writes the queued frames and a close frame, then closes the
	// socket. Only the first call has an effect.
	Close(code CloseCode)
}

// Connection is one socket attached to a session. The socket calls Handle and
// Flush from one goroutine. Heartbeat may be called from any goroutine. The store
// calls the methods of Subscriber.
type Connection struct {
	service  *Service
	session  SessionInfo
	id       string
	openedAt time.Time
	attached AttachResult
	start    Cursor // sent to the browser in the ready frame
	resumes  bool   // the browser has brought a cursor
	// reoffer is set while an offer may be missing: the last one failed, or an
	// earlier connection was responsible for it.
	reoffer     atomic.Bool
	checks      atomic.Int32  // notices that no check has answered; see checkSoon
	rate        *rate.Limiter // frames, except audio
	audioRate   *rate.Limiter // bytes; nil before the first audio
	invalid     int           // invalid frames in a row
	batch       batch
	unsubscribe func()
	tracer      trace.Tracer
	handshake   trace.SpanContext // the span of the request that opened the connection

	mu        sync.Mutex
	phase     phase
	socket    Socket    // nil in the phase opening
	cursor    Cursor    // of the last queued message
	page      []Message // rest of the page that is being replayed
	replayed  int       // messages since Start
	behind    bool      // messages have arrived that were not delivered: when the phase ends, read the history
	recheck   bool      // in the phase opening: ownership may be lost, so check it
	lastEntry string    // newest entry that the store acknowledged
	hasFrames bool      // the store acknowledged frames of this connection
}

// SessionID returns the ID of the session.
func (c *Connection) SessionID() string { return c.session.SessionID }

// Start sends the ready frame and the missed messages to the socket, then live
// messages as they arrive.
func (c *Connection) Start(socket Socket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.socket = socket
	a, limits := c.attached, c.service.limits
	c.send(wire.TypeStatus, c.frame(wire.TypeStatus, readyPayload{
		Event: "ready", ConnectionID: c.id, StreamID: c.start.String(), Resumed: a.Recovered,
		PingIntervalMs: limits.PingIntervalMs, MaxMessageBytes: limits.FrameBytes,
		TextChat: a.TextChat, ExpiresAt: c.session.ExpiresAt.UTC(), ReconnectJitterMs: limits.ReconnectJitter.Milliseconds(),
	}))
	c.attached.Missed = nil // do not keep it for the connection's life
	c.phase, c.page = firstReplay, a.Missed
	c.replayPart()
	if c.cursor == a.Head {
		c.endReplay()
	} else {
		c.replayNext()
	}
	if c.recheck {
		c.checkSoon()
	}
}

// Close detaches the connection. It is called after the socket is closed.
func (c *Connection) Close() {
	c.service.open.Delete(c)
	c.unsubscribe()
	c.service.sessions.Touch(c.session.SessionID)
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	err := c.detach(ctx)
	switch {
	case err != nil:
		c.service.log.WarnContext(ctx, "connection not detached; will retry", "session_id", c.session.SessionID, "error", err)
		c.detachLater(cancelInterval)
	case c.hasFrames:
		c.detachLater(confirmDelay)
	}
}

func (c *Connection) detach(ctx context.Context) error {
	return c.service.store.Detach(ctx, c.owner(), c.entry(wire.Entry{Kind: wire.KindSession, Event: "disconnected"}))
}

// cancelAttach detaches a connection after Attach has failed. When it returns,
// Attach cannot take effect any more: the store has cancelled it, or the deadline of
// Attach has passed.
func (c *Connection) cancelAttach(deadline time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	for c.detach(ctx) != nil {
		if background.Sleep(ctx, cancelInterval) != nil {
			c.detachLater(cancelInterval)
			return
		}
	}
}

// detachLater detaches the connection in the background after a delay, or earlier if the instance
// stops, and retries failures. Otherwise the session would be in use until the lease expires.
// After confirmDelay it is detached again, because a failover can lose the first time together with
// the newest acknowledged entry. Only this connection knows that entry, so only it can report the loss.
func (c *Connection) detachLater(delay time.Duration) {
	_ = c.service.tasks.Go(context.Background(), func(ctx context.Context) {
		start, confirms := time.Now(), delay == confirmDelay
		for range detachAttempts {
			if background.Sleep(ctx, delay) != nil { // the instance stops
				if !confirms || time.Since(start) > minConfirmDelay {
					c.detachBeforeStop(ctx)
				}
				return
			}
			if c.detach(ctx) == nil {
				if c.hasFrames && !confirms {
					c.detachLater(confirmDelay)
				}
				return
			}
			delay = storeTimeout
		}
	})
}

// detachBeforeStop detaches the connection while the instance stops. A store that is
// unavailable may be back in time.
func (c *Connection) detachBeforeStop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	backoff := background.Backoff{Min: cancelInterval, Max: time.Second}
	for fault.Is(c.detach(ctx), fault.ServiceUnavailable) && background.Sleep(ctx, backoff.Next()) == nil {
	}
}

// owner describes this connection to the store.
func (c *Connection) owner() Owner {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Owner{c.session.SessionID, c.id, c.attached.Number, c.cursor, c.lastEntry}
}

// UntilHeartbeat returns the time until Heartbeat is due: with the next ping or
// when the session expires.
func (c *Connection) UntilHeartbeat() time.Duration {
	return max(0, min(c.service.limits.PingInterval(), c.session.ExpiresAt.Sub(c.service.now())))
}

// Heartbeat renews the ownership of the session and closes the socket if it is
// lost. It is called with every ping. A socket stays open while the store is
// unreachable, since the lease may outlast the outage.
func (c *Connection) Heartbeat(ctx context.Context) { _ = c.heartbeat(ctx) }

// checkSoon is Heartbeat in the background after a notice. A notice during a check causes another
// check after it, not a concurrent one, so that a slow store does not get more to do.
func (c *Connection) checkSoon() {
	if c.checks.Add(1) == 1 {
		c.service.run(c.check)
	}
}

// check runs heartbeat until the store replies, because the notice is not repeated.
func (c *Connection) check(ctx context.Context) {
	backoff := background.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	answered := c.checks.Load()
	for c.heartbeat(ctx) != nil && background.Sleep(ctx, backoff.Next()) == nil {
		answered = c.checks.Load()
	}
	if !c.checks.CompareAndSwap(answered, 0) {
		c.service.run(c.check)
	}
}

func (c *Connection) heartbeat(ctx context.Context) error {
	if c.expired() {
		c.close(CloseExpired)
		return nil
	}
	result, err := c.service.store.Renew(ctx, c.owner(), c.service.lease(), c.reoffer.Load())
	if err != nil {
		c.reoffer.Store(true)
		return err
	}
	if result.Offer {
		c.offer(ctx, result.Expired)
	} else {
		c.reoffer.Store(false)
	}
	if !c.closeUnlessOwned(result.Outcome) {
		c.checkPosition(result.Newest)
	}
	return nil
}

// checkPosition reads the history if this connection is not at its newest
// message, in case a notification was lost.
func (c *Connection) checkPosition(newest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cursor.ID != newest {
		c.catchUp()
	}
}

// offer announces the session to the runtimes. A failed offer is retried within
// claimInterval. expired reports that the claim of a runtime has expired.
func (c *Connection) offer(ctx context.Context, expired bool) {
	if expired {
		c.service.metrics.expired.Inc()
	}
	err := c.service.offer(ctx, c.session.Offer)
	c.reoffer.Store(err != nil)
	if err != nil {
		c.service.log.WarnContext(ctx, "session not offered to runtimes; will retry", "session_id", c.session.SessionID, "error", err)
	}
}

// closeUnlessOwned closes the socket after an outcome that means that this
// connection does not own the session, and reports whether it did.
func (c *Connection) closeUnlessOwned(outcome Outcome) bool {
	switch outcome {
	case NotOwner:
		c.close(CloseReplaced)
	case Expired:
		c.close(CloseStoreUnavailable)
	case Ended:
		c.closeEnded()
	case Lost:
		c.close(CloseHistoryLost)
	default:
		return false
	}
	return true
}

// closeEnded closes the socket of an ended channel. The reason is expiry if the
// session has expired, even if a sweeper ended the channel first.
func (c *Connection) closeEnded() {
	if c.expired() {
		c.close(CloseExpired)
	} else {
		c.close(CloseEnded)
	}
}

func (c *Connection) expired() bool { return !c.service.now().Before(c.session.ExpiresAt) }

// sendError sends an error frame. fatal means that the socket is closed after it.
func (c *Connection) sendError(e *fault.Error, relatesTo string, fatal bool) {
	c.service.metrics.rejected.WithLabelValues(string(e.Code)).Inc()
	payload := errorPayload{Code: e.Code, Message: e.Message, Fatal: fatal, RelatesTo: relatesTo}
	payload.Issues, _ = e.Details.([]fault.Issue)
	if n := len(payload.Issues); n > 1 {
		payload.Message = fmt.Sprintf("The frame has %d issues. See the member issues.", n)
	}
	c.reply(wire.TypeError, payload)
}

func (c *Connection) reply(t wire.MessageType, payload any) {
	frame := c.frame(t, payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(t, frame)
}

// close closes the socket. Before Start it schedules a check of the ownership
// instead.
func (c *Connection) close(code CloseCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase == opening {
		c.recheck = true
		return
	}
	c.socket.Close(code)
}

// send queues frames of one type. The caller holds mu.
func (c *Connection) send(t wire.MessageType, frames ...[]byte) {
	c.service.metrics.frames.WithLabelValues(string(t), string(wire.ToBrowser)).Add(float64(len(frames)))
	c.queue(frames...)
}

// queue queues frames. The caller holds mu.
func (c *Connection) queue(frames ...[]byte) {
	if !c.socket.Send(frames...) {
		c.socket.Close(CloseSlowReader)
	}
}
