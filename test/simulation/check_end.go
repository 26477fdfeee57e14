package simulation

import (
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
)

// checkDeletion checks that a deletion that was acknowledged holds.
func (r *channelRecord) checkDeletion() {
	open := r.isOpen()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.ended:
	case r.deleted.IsZero():
		r.violation("the session could not be deleted within %v without faults", maxCalm)
	case open:
		r.violation("the session was deleted, but its channel is open")
	}
}

// endLost reports whether a failover has lost the end of the channel. Without replicas nobody
// repeats it: the channel is open until it is idle.
func (r *channelRecord) endLost() bool {
	return r.ledger.world.replicas == 0 && r.hasLost("end_channel")
}

// hasLost reports whether a failover has lost a call of one of the scripts.
func (r *channelRecord) hasLost(scripts ...string) bool {
	l := r.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.losses, func(x loss) bool {
		return slices.ContainsFunc(x.commands, func(c command) bool { return c.channel == r.id && slices.Contains(scripts, c.script) })
	})
}

// endDelivered reports whether a runtime knows that the channel has ended. If none had
// claimed it, none need to know. The caller holds mu.
func (r *channelRecord) endDelivered() bool {
	return len(r.claims) == 0 || slices.ContainsFunc(r.deliveries, func(position string) bool {
		return r.entries[position] == string(wire.KindChannelEnded) // a runtime that has lost its claim may get earlier entries later
	})
}

// checkEnd checks that both sides know that the channel has ended.
func (r *channelRecord) checkEnd() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended || r.endLost() {
		return
	}
	if !r.endDelivered() {
		r.violation("the runtime was not notified that the channel has ended")
	}
	if r.finalCode == 0 && r.online {
		r.violation("the browser was not notified that the channel has ended")
	}
}

// checkMemory checks that every key of the channels has a TTL, and that the keys of
// ended channels expire in time.
func (l *ledger) checkMemory() {
	s := l.world.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.engine.Keys() {
		if strings.HasPrefix(key, "telapi:ch:") && s.engine.TTL(key) == 0 {
			l.violation("key %s never expires", strings.ReplaceAll(key, channelOf(key), "ID"))
		}
	}
	l.checkExpired(observerTime, []string{"end_channel", "commit"}, "meta", "work") // if the last commit is lost, a runtime could need the entries
	l.checkExpired(time.Duration(wire.DefaultChannelLimits().KeepMs)*time.Millisecond, []string{"end_channel"})
}

// observerTime is how long the streams of an ended channel can be read.
const observerTime = 5 * time.Minute

// checkExpired advances the clock and checks that ended channels have no keys except
// the allowed ones, unless a failover has lost a call of one of the scripts. The caller holds store.mu.
func (l *ledger) checkExpired(after time.Duration, scripts []string, allowed ...string) {
	engine := l.world.store.engine
	engine.FastForward(after + time.Minute)
	for _, key := range engine.Keys() {
		name := key[strings.LastIndex(key, ":")+1:]
		if r := l.channel(channelOf(key)); r != nil && r.ended && !(l.world.replicas == 0 && r.hasLost(scripts...)) && !slices.Contains(allowed, name) {
			r.violation("key %s is left %v after the end", name, after)
		}
	}
}
