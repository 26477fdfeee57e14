package simulation

import (
	"fmt"
	"sync"
	"time"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/session"
)

// ledger records the data that the services acknowledged to browsers, runtimes and
// providers. Its check compares it with the content of the store at the end.
type ledger struct {
	world    *world
	channels []*channelRecord

	mu         sync.Mutex
	violations []string
	actions    map[string]bool     // message IDs of stored browser actions
	crashes    map[*host]time.Time // of instances and runtimes
	stops      []time.Time         // of instances
	losses     []loss
	troubles   []period // faults of the network
}

// loss is a failover that lost commands.
type loss struct {
	at       time.Time
	commands []command
}

func (l *ledger) violation(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	l.violations = append(l.violations, text)
	l.world.trace("VIOLATION", "%s", text)
}

func (l *ledger) channel(id string) *channelRecord {
	for _, r := range l.channels {
		if r.id == id {
			return r
		}
	}
	return nil
}

func (l *ledger) instanceCrashed(p *serviceProcess) { l.crashed(p.host) }
func (l *ledger) runtimeCrashed(p *runtimeProcess)  { l.crashed(p.host) }

func (l *ledger) instanceStops() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stops = append(l.stops, time.Now())
}

func (l *ledger) crashed(h *host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashes[h] = time.Now()
}

func (l *ledger) actionsStored(actions []session.Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range actions {
		l.actions[a.MessageID] = true
	}
}

// channelRecord is the ledger of one channel.
type channelRecord struct {
	ledger *ledger
	id     string
	name   string

	mu                             sync.Mutex
	frames                         []*frameRecord
	sends                          []*sendRecord
	items                          []*itemRecord
	numbers                        map[string]int       // of registered items, in their order
	messages                       []string             // that the browser received
	arrived                        map[string]bool      // their stream IDs
	arrivals                       map[string]time.Time // of messages
	claims                         []*claimedChannel
	active                         *claimedChannel
	entries                        map[string]string // delivered entries by position
	deliveries                     []string
	commit                         string // newest commit
	browserNotices, runtimeNotices []time.Time
	lostAt                         int64     // of the newest loss that a claim has reported, in Unix ms
	ended                          bool      // the end of the channel was requested
	deleted                        time.Time // when the deletion of the session was acknowledged
	finalCode                      channel.CloseCode
	online                         bool
	firstOnline                    time.Time
	disconnections                 []period
	handshakes                     map[*host]int       // that are under way
	lastHandshake                  map[*host]time.Time // when one ended
}

// period is a time, such as one without a ready connection.
type period struct{ from, to time.Time }

type frameRecord struct {
	number   int
	id       string
	action   bool
	padding  string
	acked    time.Time
	composed time.Time
}

type sendRecord struct {
	number  int
	id      string
	started time.Time
	acked   time.Time
	claim   *claimedChannel
}

type itemRecord struct {
	number         int
	id             string
	answered       bool // the provider will answer
	kind           wire.WorkItemKind
	token          string
	ofFrame        bool      // registered with a chat frame
	isAwaited      bool      // the runtime knows that it was registered
	awaitedAt      time.Time // when it learned of that the last time
	deadline       time.Time
	claim          *claimedChannel
	acceptedAt     time.Time
	lastAccepted   time.Time // after the store has lost the result, it is accepted again
	callbackID     string
	rejectedAt     time.Time
	streamed       bool // parts of its answer were delivered
	cancelling     bool
	isCancelled    bool
	cancelledAt    time.Time
	maybeCancelled bool
}

func (r *channelRecord) violation(format string, args ...any) {
	r.ledger.violation(r.name+": "+format, args...)
}

func (r *channelRecord) newFrame(id string, action bool) *frameRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &frameRecord{number: len(r.frames) + 1, id: id, action: action, composed: time.Now()}
	r.frames = append(r.frames, f)
	r.ledger.world.trace(r.name, "frame %d composed", f.number)
	return f
}

func (r *channelRecord) acknowledged(f *frameRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.acked = time.Now()
	r.ledger.world.trace(r.name, "frame %d acknowledged", f.number)
}

// received records every message that the browser gets.
func (r *channelRecord) received(m wire.ChannelMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := textOf(m)
	r.messages = append(r.messages, key)
	r.ledger.world.trace(r.name, "message %s received", key)
	if r.arrived[m.StreamID] {
		r.violation("the browser got message %s twice", key)
	}
	r.arrived[m.StreamID] = true
	if r.arrivals[key].IsZero() {
		r.arrivals[key] = time.Now()
	}
}

func (r *channelRecord) browserNotified() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.browserNotices = append(r.browserNotices, time.Now())
}

func (r *channelRecord) runtimeNotified() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runtimeNotices = append(r.runtimeNotices, time.Now())
}

// lostBeforeClaim records that a claim reports the time of the newest loss, if there was one: while
// no runtime had the channel, or an earlier one.
func (r *channelRecord) lostBeforeClaim(at int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at > r.lostAt {
		r.lostAt = at
		r.runtimeNotices = append(r.runtimeNotices, time.Now())
	}
}

// closed checks a close code. There is one page, and it has one connection at a
// time, so no other connection can have replaced it, except one that the page has left, if the
// store's clock was set back since: then it can count as the newer one.
func (r *channelRecord) closed(code channel.CloseCode) {
	owner := r.ledger.world.audit.ownerOf(r.id)
	excused := owner != nil && r.ledger.world.audit.steppedSince(owner.sent)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case code == channel.CloseHistoryLost:
		r.browserNotices = append(r.browserNotices, time.Now())
	case code == channel.CloseReplaced:
		r.finalCode = code
		if !excused {
			r.violation("the only connection of the session was closed as replaced (4502)")
		}
	case code >= 4500:
		r.finalCode = code
		if !r.ended {
			r.violation("the socket was closed with %d while the channel is open", code)
		}
	}
}

func (r *channelRecord) rejected(code fault.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.violation("the handshake was rejected with %s while the channel is open", code)
	}
}

func (r *channelRecord) handshakeStarted(h *host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handshakes[h]++
}

func (r *channelRecord) handshakeEnded(h *host) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handshakes[h]--
	r.lastHandshake[h] = time.Now()
}

// failedHandshake reports whether a request that a host sent for a handshake is
// executed although its handshake has failed: none is under way. A process that
// crashed did not report anything.
func (r *channelRecord) failedHandshake(h *host) (at time.Time, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastHandshake[h], r.handshakes[h] == 0 && h.alive()
}

func (r *channelRecord) connected(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.online = true
	if r.firstOnline.IsZero() {
		r.firstOnline = time.Now()
	}
	if n := len(r.disconnections); n > 0 && r.disconnections[n-1].to.IsZero() {
		r.disconnections[n-1].to = time.Now()
	}
}

func (r *channelRecord) disconnected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.online = false
	r.disconnections = append(r.disconnections, period{from: time.Now()})
}

func (r *channelRecord) left(time.Time) {}

// claimed records a new claim. Entries that were committed must not come again,
// unless the store lost the commit.
func (r *channelRecord) claimed(t *claimedChannel) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims = append(r.claims, t)
	r.active = t
	if number(t.Channel.Position) < number(r.commit) && !r.ledger.lostSince(r.id, time.Time{}) {
		r.violation("the claim starts at %s, but %s was committed", t.Channel.Position, r.commit)
	}
	return len(r.claims)
}

func (r *channelRecord) claimEnded(t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.until = time.Now()
	r.active = nil
	for _, other := range r.claims {
		if other.until.IsZero() {
			r.active = other
		}
	}
}

// claimLost checks that the claim was released because its runtime was not connected, or
// that another runtime has the channel. If the store's clock was set back since, a request of
// the runtime's former connection can count as the newer one: then the present connection
// loses the claim, and the channel is offered when the former one is known to be gone.
func (r *channelRecord) claimLost(t *claimedChannel) {
	if r.ledger.lostSince(r.id, time.Time{}) {
		r.runtimeNotified() // the store may have lost the claim itself
		return
	}
	if claim := r.ledger.world.audit.claimOf(r.id); claim != nil && claim.name == t.claim && !r.ledger.world.audit.steppedSince(t.from) {
		r.violation("%s lost a claim that it has", t.process.host.name)
	}
}

// delivered records an entry that Receive returned.
func (r *channelRecord) delivered(t *claimedChannel, d callruntime.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := describe(d.Entry)
	r.ledger.world.trace(t.process.host.name, "receives %d %s of %s", number(d.Position), key, r.name)
	if !t.afterLoss && number(d.Position) != number(t.last)+1 {
		r.violation("claim %d received entry %d after entry %d", t.number, number(d.Position), number(t.last))
	}
	t.last, t.afterLoss = d.Position, false
	if known, ok := r.entries[d.Position]; ok && known != key {
		r.violation("entry %s was %s, now it is %s", d.Position, known, key)
	}
	r.entries[d.Position] = key
	r.deliveries = append(r.deliveries, d.Position)
}

func (r *channelRecord) committed(position string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number(position) > number(r.commit) {
		r.commit = position
	}
}

func (r *channelRecord) newSend() *sendRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &sendRecord{number: len(r.sends) + 1, started: time.Now()}
	s.id = fmt.Sprintf("%s-m%d", r.name, s.number)
	r.sends = append(r.sends, s)
	return s
}

func (r *channelRecord) sendAcknowledged(sends []*sendRecord, t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range sends {
		s.acked, s.claim = time.Now(), t
		r.ledger.world.trace(t.process.host.name, "message %s sent", s.id)
	}
}

func (r *channelRecord) endRequested() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

func (r *channelRecord) deletionAcknowledged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleted = time.Now()
	r.ledger.world.trace(r.name, "session deleted")
}
