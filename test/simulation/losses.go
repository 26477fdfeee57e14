package simulation

import (
	"slices"
	"strings"
	"time"
)

func (l *ledger) failedOver(lost []command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses = append(l.losses, loss{time.Now(), lost})
}

// lostSince reports whether a failover after the given time lost a command on a
// channel.
func (l *ledger) lostSince(channelID string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.losses, func(x loss) bool {
		return x.at.After(since) && slices.ContainsFunc(x.commands, func(c command) bool { return c.channel == channelID })
	})
}

// lostAt returns when the call of a script that wrote something was lost; zero if
// it was not.
func (l *ledger) lostAt(channelID, script, ref string) (at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.losses {
		for _, c := range x.commands {
			noEffect := len(c.reply) > 0 && (c.reply[0] == "duplicate" || strings.HasPrefix(c.reply[0], "-")) // it only times out work items
			if c.channel == channelID && c.script == script && !noEffect && !c.isPart() && slices.ContainsFunc(c.args, func(a string) bool { return a == ref || strings.Contains(a, `"`+ref+`"`) }) {
				at = x.at
			}
		}
	}
	return at
}

// isPart reports whether a command delivers a part of a streamed answer, but not its end:
// then it has no receipt.
func (c command) isPart() bool { return c.script == "stream" && c.argv()[7] == "" }

// reported checks that a loss was reported to both sides. A process that has crashed, or has
// stopped just before a failover, cannot report a loss that only it knew.
func (r *channelRecord) reported(what string, at time.Time) {
	if r.ended { // both sides know that
		return
	}
	if r.ledger.world.replicas > 0 {
		r.violation("%s was acknowledged and then lost, although replicas had to confirm it", what)
	}
	after := func(notified time.Time) bool { return notified.After(at) }
	stopped := func(t time.Time) bool { return t.After(at.Add(-3*time.Second)) && t.Before(at.Add(time.Second)) }
	if r.crashedAround(at) || slices.ContainsFunc(r.ledger.stops, stopped) {
		return
	}
	if !slices.ContainsFunc(r.browserNotices, after) {
		r.violation("%s was acknowledged and then lost, and the browser was not notified", what)
	}
	held := slices.ContainsFunc(r.claims, func(t *claimedChannel) bool { return t.from.Before(at) && (t.until.IsZero() || t.until.After(at)) })
	if held && !slices.ContainsFunc(r.runtimeNotices, after) {
		r.violation("%s was acknowledged and then lost, and the runtime was not notified", what)
	}
}

// crashedAround reports whether a process that may have known of a loss has crashed. It is
// false without a loss.
func (r *channelRecord) crashedAround(at time.Time) bool {
	for _, crash := range r.ledger.crashes {
		if !at.IsZero() && crash.After(at.Add(-3*time.Second)) {
			return true
		}
	}
	return false
}
