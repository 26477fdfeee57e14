package simulation

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
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
	losses     []loss
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
	messages                       []wire.ChannelMessage // that the browser received
	claims                         []*claimedChannel
	active                         *claimedChannel
	holder                         string            // name of the runtime that claimed it last
	entries                        map[string]string // delivered entries by position
	deliveries                     []string
	commit                         string // newest acknowledged commit
	browserNotices, runtimeNotices []time.Time
	notifiedClaims                 map[*claimedChannel]bool
	ended                          bool // the runtime has ended the channel
	finalCode                      channel.CloseCode
	online                         bool
	disconnections                 []disconnection
	handshakes                     map[*host]int           // that are under way
	lastHandshake                  map[*host]time.Time     // when one ended
	attaches                       map[*runtimeProcess]int // calls of Attach that are under way
}

// disconnection is a time without a ready connection.
type disconnection struct{ from, to time.Time }

type frameRecord struct {
	number   int
	id       string
	action   bool
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
	order          int // of registration, from 1; 0 if the outcome is unknown
	deadline       time.Time
	claim          *claimedChannel
	acceptedAt     time.Time
	callbackID     string
	refusedAt      time.Time
	isCancelled    bool
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

// received records a message that the browser got for the first time.
func (r *channelRecord) received(m wire.ChannelMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, m)
	r.ledger.world.trace(r.name, "message %s received", m.MessageID)
}

func (r *channelRecord) browserNotified() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.browserNotices = append(r.browserNotices, time.Now())
}

func (r *channelRecord) runtimeNotified(p *runtimeProcess) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runtimeNotices = append(r.runtimeNotices, time.Now())
}

func (r *channelRecord) markNotified(t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notifiedClaims[t] = true
}

// wasNotified reports whether a claim ended because the store has lost data.
func (r *channelRecord) wasNotified(t *claimedChannel) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notifiedClaims[t]
}

// closed checks a close code. There is one page, and it has one connection at a
// time, so no other connection can have replaced it.
func (r *channelRecord) closed(code channel.CloseCode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case code == channel.CloseHistoryLost:
		r.browserNotices = append(r.browserNotices, time.Now())
	case code == channel.CloseReplaced:
		r.finalCode = code
		r.violation("the only connection of the session was closed as replaced (4502)")
	case code >= 4500:
		r.finalCode = code
		if !r.ended {
			r.violation("the socket was closed with %d while the channel is open", code)
		}
	}
}

func (r *channelRecord) refused(code fault.Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.violation("the handshake was refused with %s while the channel is open", code)
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
	if n := len(r.disconnections); n > 0 && r.disconnections[n-1].to.IsZero() {
		r.disconnections[n-1].to = time.Now()
	}
}

func (r *channelRecord) disconnected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.online = false
	r.disconnections = append(r.disconnections, disconnection{from: time.Now()})
}

func (r *channelRecord) left(time.Time) {}

func (r *channelRecord) claimedBy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holder
}

// claimed records a new claim. Entries that were committed must not come again,
// unless the store lost the commit.
func (r *channelRecord) claimed(t *claimedChannel) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims = append(r.claims, t)
	r.active, r.holder = t, t.process.node.name
	if number(t.Committed) < number(r.commit) && !r.ledger.lostSince(r.id, time.Time{}) {
		r.violation("the claim starts at %s, but %s was committed", t.Committed, r.commit)
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

// claimLost checks that another claim exists: nothing else may end one. A claim
// that was not renewed in time can be taken by the other runtime.
func (r *channelRecord) claimLost(t *claimedChannel) {
	if r.ledger.lostSince(r.id, time.Time{}) {
		r.runtimeNotified(t.process) // the store may have lost the claim itself
		return
	}
	claim := r.ledger.world.audit.claimOf(r.id)
	if claim != nil && claim.host == t.process.host && !r.claimedAgain(t, claim.sent) {
		r.violation("%s lost its claim to a request of its own that had failed", t.process.host.name)
	}
}

// attaching counts the calls of Attach that a process has under way.
func (r *channelRecord) attaching(p *runtimeProcess, change int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attaches[p] += change
}

// claimedAgain reports whether the process of a claim has claimed the channel once
// more since: when it starts, it attaches to its channels while it accepts offers.
func (r *channelRecord) claimedAgain(t *claimedChannel, since time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attaches[t.process] > 0 || slices.ContainsFunc(r.claims, func(other *claimedChannel) bool {
		return other != t && other.process == t.process && !other.from.Before(since)
	})
}

// delivered records an entry that Receive returned.
func (r *channelRecord) delivered(t *claimedChannel, d calls.Delivery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := describe(d.Entry)
	r.ledger.world.trace(t.process.host.name, "receives %d %s of %s", number(d.Position), key, r.name)
	if number(d.Position) != number(t.last)+1 {
		r.violation("claim %d received entry %d after entry %d", t.number, number(d.Position), number(t.last))
	}
	t.last = d.Position
	if known, ok := r.entries[d.Position]; ok && known != key {
		r.violation("entry %s was %s, now it is %s", d.Position, known, key)
	}
	r.entries[d.Position] = key
	r.deliveries = append(r.deliveries, d.Position)
}

func (r *channelRecord) committed(position string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commit = position
}

func (r *channelRecord) newSend() *sendRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &sendRecord{number: len(r.sends) + 1, started: time.Now()}
	s.id = fmt.Sprintf("%s-m%d", r.name, s.number)
	r.sends = append(r.sends, s)
	return s
}

func (r *channelRecord) sendAcknowledged(s *sendRecord, t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.acked, s.claim = time.Now(), t
	r.ledger.world.trace(t.process.host.name, "message %s sent", s.id)
}
