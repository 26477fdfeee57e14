package simulation

import (
	"strings"
	"sync"
	"time"
)

// clockError is how much the scripts tolerate in the order of two requests.
const clockError = 250 * time.Millisecond

// audit watches the commands that the store executes. It checks that a session
// has one owner and a channel one claim, and that nothing takes effect after the
// caller got an error or its work item was cancelled.
type audit struct {
	world *world

	mu     sync.Mutex
	owners map[string]*holder // by channel
	claims map[string]*holder

	cancelled map[string]bool // work items, after their channel and a space

	steppedAt time.Time // last step of the store's clock
}

// holder is the connection or claim that has a channel.
type holder struct {
	id   string // connection ID or claim token
	name string // of the claim
	host *host
	sent time.Time // when the host asked for it

	requested string // when the peer of the host did, in ms of the store's clock
}

func newAudit(w *world) *audit {
	return &audit{world: w, owners: map[string]*holder{}, claims: map[string]*holder{}, cancelled: map[string]bool{}}
}

// reset forgets everything: the store has lost data.
func (a *audit) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.owners)
	clear(a.claims)
	clear(a.cancelled)
}

// clockStepped records a step of the store's clock. Of two requests before and after
// it, the store cannot tell which one is older, nor whether a request from before it is late.
func (a *audit) clockStepped() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steppedAt = time.Now()
}

func (a *audit) steppedSince(at time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.steppedAt.After(at)
}

// isOutdated reports whether a command that takes something over was requested and sent
// before that of the present holder. A host may send a request later than a host that got
// one after it.
func (a *audit) isOutdated(c command, requested string, old *holder) bool {
	return old != nil && old.sent.After(c.sent.Add(clockError)) && c.sent.After(a.steppedAt) && number(requested) < number(old.requested)
}

func (a *audit) ownerOf(channelID string) *holder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owners[channelID]
}

func (a *audit) claimOf(channelID string) *holder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claims[channelID]
}

// executed checks a script call. The store holds its lock.
func (a *audit) executed(c command) {
	a.mu.Lock()
	defer a.mu.Unlock()
	record := a.world.ledger.channel(c.channel)
	if record == nil || len(c.reply) == 0 {
		return
	}
	argv, outcome := c.argv(), c.reply[0]
	if c.script == "frame" && len(c.reply) > 1 {
		outcome = c.reply[1]
	}
	a.world.trace("store", "%s from %s on %s: %s (sent %v ago)", c.script, c.host.name, record.name, printable(c.script, outcome), c.at.Sub(c.sent).Round(time.Microsecond))
	record.committed(committedBy(c.script, outcome, argv))
	if c.script == "await" || c.script == "frame" {
		record.registered(c)
	}
	switch {
	case c.script == "connect" && outcome == "attached":
		if at, failed := record.failedHandshake(c.host); failed && c.at.Sub(at) > time.Millisecond && c.sent.After(a.steppedAt) { // scripts have deadlines in whole ms
			record.violation("a handshake of %s took the session over %v after it had failed", c.host.name, c.at.Sub(at).Round(time.Millisecond))
		}
		if old := a.owners[c.channel]; a.isOutdated(c, argv[3], old) {
			record.violation("a handshake that %s asked for %v earlier replaced that of %s", c.host.name, old.sent.Sub(c.sent).Round(time.Millisecond), old.host.name)
		}
		a.owners[c.channel] = &holder{id: argv[0], host: c.host, sent: c.sent, requested: argv[3]}
	case c.script == "claim" && outcome == "claimed" && argv[3] != "renew":
		if old := a.claims[c.channel]; a.isOutdated(c, argv[4], old) && old.id != argv[1] {
			record.violation("a claim that %s asked for %v earlier replaced the claim of %s", c.host.name, old.sent.Sub(c.sent).Round(time.Millisecond), old.host.name)
		}
		a.claims[c.channel] = &holder{id: argv[1], name: argv[0], host: c.host, sent: c.sent, requested: argv[4]}
	case c.script == "claim" && outcome == "claimed" && argv[2] == "0":
		delete(a.claims, c.channel) // released
	case c.script == "revoke":
		if claim := a.claims[c.channel]; claim != nil && strings.HasPrefix(claim.id, argv[0]) {
			delete(a.claims, c.channel)
		}
	case c.script == "detach" && outcome == "detached":
		if owner := a.owners[c.channel]; owner != nil && owner.id != argv[0] {
			record.violation("a connection that does not own the session released it")
		}
	case c.script == "frame" && (outcome == "appended" || outcome == "repeated"):
		if owner := a.owners[c.channel]; owner != nil && owner.id != argv[0] {
			record.violation("a connection that does not own the session appended frames")
		}
	case c.script == "cancel" && outcome == "cancelled":
		a.cancelled[c.channel+" "+argv[1]] = true
	case (c.script == "stream" || c.script == "callback") && (outcome == "routed" || outcome == "parked"):
		if a.cancelled[c.channel+" "+argv[2]] {
			record.violation("the store accepted an answer to %s after its cancellation", argv[2])
		}
	case c.script == "send" && len(c.reply) > 1 && c.reply[1] == "sent",
		c.script == "commit" && outcome == "committed",
		c.script == "await" && outcome == "awaited":
		if claim := a.claims[c.channel]; claim != nil && claim.id != argv[0] {
			record.violation("%s changed the channel without its claim", c.host.name)
		}
	}
}

// committedBy returns the position that a script call has committed; empty: none.
func committedBy(script, outcome string, argv []string) string {
	switch {
	case script == "commit" && (outcome == "committed" || outcome == "drained"):
		return argv[1]
	case script == "send" && number(outcome) > 0:
		return argv[3]
	case script == "await" && outcome == "awaited":
		return argv[8]
	}
	return ""
}

// printable keeps random IDs out of the trace.
func printable(script, outcome string) string {
	if script == "send" && number(outcome) > 0 {
		return "sent"
	}
	return outcome
}
