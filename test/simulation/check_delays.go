package simulation

import (
	"slices"
	"time"
)

const (
	// deliveryBound is how long after its acknowledgement a message must arrive at a browser
	// that is connected, if there are no faults.
	deliveryBound = 5 * time.Second
	// aftermath is how long a fault of the network has effects after its end.
	aftermath = 15 * time.Second
)

// trouble records a fault of the network or the store that starts now.
func (l *ledger) trouble(length time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.troubles = append(l.troubles, period{time.Now(), time.Now().Add(length)})
}

// delayAfter returns by how much faults can delay what starts at a time.
func (l *ledger) delayAfter(at time.Time) (delay time.Duration) {
	for _, p := range l.troubles { // in order
		if p.from.Before(at.Add(deliveryBound+delay)) && p.to.Add(aftermath).After(at) {
			delay += p.to.Sub(p.from) + time.Second
		}
	}
	return delay
}

// checkDelays checks that messages arrive in time, unless a process has crashed: its peers
// may notice that late.
func (r *channelRecord) checkDelays() {
	if r.ledger.lostSinceLocked(r.id) {
		return
	}
	for _, m := range r.sends {
		bound := deliveryBound + r.ledger.delayAfter(m.acked)
		from, to := m.acked, m.acked.Add(bound)
		arrived, crashed := r.arrivals[m.id], false
		for _, crash := range r.ledger.crashes {
			crashed = crashed || crash.After(from.Add(-time.Minute)) && crash.Before(to)
		}
		if !m.acked.IsZero() && !crashed && !r.mayMiss(m) && r.wasOnline(from, to) && (arrived.IsZero() || arrived.After(to)) {
			r.violation("message %d did not arrive within %v", m.number, bound)
		}
	}
}

// wasOnline reports whether the browser was connected all the time.
func (r *channelRecord) wasOnline(from, to time.Time) bool {
	return !r.firstOnline.IsZero() && r.firstOnline.Before(from) && !r.ended && to.Before(time.Now()) && !slices.ContainsFunc(r.disconnections, func(p period) bool {
		return p.from.Before(to) && (p.to.IsZero() || p.to.After(from))
	})
}
