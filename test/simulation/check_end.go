package simulation

import (
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
)

// checkEnd checks that both sides know that the channel has ended.
func (r *channelRecord) checkEnd() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		return
	}
	if n := len(r.deliveries); n == 0 || r.entries[r.deliveries[n-1]] != string(wire.KindChannelEnded) {
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
	l.checkExpired(observerTime, "meta", "work")
	l.checkExpired(time.Duration(wire.DefaultChannelLimits().KeepMs) * time.Millisecond)
}

// observerTime is how long the streams of an ended channel can be read.
const observerTime = 5 * time.Minute

// checkExpired advances the clock and checks that ended channels have no keys except
// the allowed ones. The caller holds store.mu.
func (l *ledger) checkExpired(after time.Duration, allowed ...string) {
	engine := l.world.store.engine
	engine.FastForward(after + time.Minute)
	for _, key := range engine.Keys() {
		name := key[strings.LastIndex(key, ":")+1:]
		if r := l.channel(channelOf(key)); r != nil && r.ended && !slices.Contains(allowed, name) {
			r.violation("key %s is left %v after the end", name, after)
		}
	}
}
