package simulation

import (
	"math/rand/v2"
	"time"
)

// injector draws faults from the seed.
type injector struct {
	*world
	rng  *rand.Rand
	plan []plannedFault
}

func (f *injector) seconds(least, most float64) time.Duration {
	return time.Duration((least + f.rng.Float64()*(most-least)) * float64(time.Second))
}

func (f *injector) chance(percent int) bool { return f.rng.IntN(100) < percent }

func (f *injector) at(at time.Duration, apply func()) {
	f.plan = append(f.plan, plannedFault{at, apply})
}

// trapScripts are the scripts whose requests are held and whose replies are lost.
var trapScripts = []string{"await", "await", "callback", "cancel", "claim", "commit", "connect", "connect", "detach", "frame", "frame", "renew", "send"}

// draw adds one fault, or several that are worse together.
func (f *injector) draw(at time.Duration) {
	switch n := f.rng.IntN(100); {
	case n < 15:
		f.loseReply(at)
	case n < 30:
		f.holdRequest(at)
	case n < 42:
		f.stall(at)
	case n < 48:
		f.reset(at)
	case n < 53:
		f.slow(at)
	case n < 63:
		f.crashInstance(at)
	case n < 72:
		f.crashRuntime(at)
	case n < 77:
		f.restartInstance(at)
	case n < 88:
		f.failover(at)
	case n < 92:
		f.stepClock(at)
	default:
		f.leave(at)
	}
}

// loseReply lets a script run and loses its reply, or delays it, often beyond the
// time for which its caller waits.
func (f *injector) loseReply(at time.Duration) {
	t := trap{script: trapScripts[f.rng.IntN(len(trapScripts))]}
	if f.chance(50) {
		t.delay = f.seconds(1, 7)
	}
	f.at(at, func() { f.store.setTrap(t) })
	if t.script == "connect" || t.script == "detach" {
		f.reconnectBrowsers(at + time.Millisecond)
	}
}

// holdRequest delays the request of a script, often beyond the time for which
// its caller waits.
func (f *injector) holdRequest(at time.Duration) {
	t := trap{script: trapScripts[f.rng.IntN(len(trapScripts))], hold: f.seconds(0.5, 8)}
	f.at(at, func() { f.store.setTrap(t) })
	switch t.script {
	case "connect", "detach":
		f.reconnectBrowsers(at + time.Millisecond)
	case "claim": // a runtime that starts, crashes and starts again
		r := f.runtimes[f.rng.IntN(len(f.runtimes))]
		again, effect := at+f.seconds(0.2, 1), f.chance(80)
		f.at(at, func() { r.crash(true) })
		f.at(again, r.start)
		again += f.seconds(0.1, 1.5)
		f.at(again, func() { r.crash(effect) })
		f.at(again+f.seconds(0.1, 1), r.start)
	}
}

// reconnectBrowsers makes all browsers connect again.
func (f *injector) reconnectBrowsers(at time.Duration) {
	away := f.seconds(0.05, 0.5)
	f.at(at, func() {
		for _, b := range f.browsers {
			b.events.put(event{leave: away})
		}
	})
}

// stall holds the bytes between a process and the store.
func (f *injector) stall(at time.Duration) {
	side, length, link, all := direction(f.rng.IntN(2)), f.seconds(0.5, 8), f.rng.IntN(4), f.chance(50)
	h := f.storeClient()
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "stalls %s (direction %d, all: %v) for %v", h.name, side, all, length)
		if all {
			h.stall(side, length)
		} else {
			h.stallOne(link, side, length)
		}
	})
	if f.chance(30) {
		f.reconnectBrowsers(at + f.seconds(0, 1))
	}
}

// storeClient returns a process that is connected to the store.
func (f *injector) storeClient() func() *host {
	n, service := f.rng.IntN(2), f.chance(50)
	return func() *host {
		if p := f.instances[n].current(); p != nil && service {
			return p.host
		}
		if p := f.runtimes[n].current(); p != nil {
			return p.host
		}
		return newHost(f.world, "none")
	}
}

func (f *injector) reset(at time.Duration) {
	h, effect := f.storeClient(), f.chance(50)
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "resets the connections of %s (effect: %v)", h.name, effect)
		h.reset(effect)
	})
}

func (f *injector) slow(at time.Duration) {
	h, slow, length := f.storeClient(), f.seconds(0.01, 0.4), f.seconds(1, 8)
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "slows %s down by up to %v for %v", h.name, slow, length)
		h.setSlow(slow)
		time.AfterFunc(length, func() { h.setSlow(0) })
	})
}

// crashInstance also lets the users of the instance go, sometimes.
func (f *injector) crashInstance(at time.Duration) {
	i, silent, effect, gone, away := f.instances[f.rng.IntN(2)], f.chance(30), f.chance(50), f.chance(50), f.seconds(28, 36)
	f.at(at, func() {
		i.crash(silent, effect)
		for _, b := range f.browsers {
			if gone {
				b.events.put(event{leave: away})
			}
		}
	})
	f.at(at+f.seconds(0.5, 12), i.start)
}

func (f *injector) crashRuntime(at time.Duration) {
	r, effect := f.runtimes[f.rng.IntN(2)], f.chance(50)
	f.at(at, func() { r.crash(effect) })
	f.at(at+f.seconds(0.2, 20), r.start)
}

func (f *injector) restartInstance(at time.Duration) {
	i := f.instances[f.rng.IntN(2)]
	f.at(at, i.stop)
	f.at(at+f.seconds(0.2, 3), i.start)
}

// failover loses the newest writes. Often the newest write is a connection.
func (f *injector) failover(at time.Duration) {
	lag, outage, survive := f.seconds(0, 1.2), f.seconds(0.05, 3), f.chance(50)
	if f.chance(50) {
		outage = f.seconds(0.01, 0.3)
	}
	if f.chance(50) {
		f.reconnectBrowsers(at - f.seconds(0, 1))
	}
	f.at(at, func() {
		lost := f.store.failover(lag, outage, survive)
		f.trace("scheduler", "fails the store over: %d writes of the last %v are lost, back in %v, subscriptions survive: %v", len(lost), lag, outage, survive)
		f.ledger.failedOver(lost)
		f.audit.reset()
	})
}

func (f *injector) stepClock(at time.Duration) {
	by := f.seconds(-2, 2)
	f.at(at, func() {
		f.trace("scheduler", "steps the store's clock by %v", by)
		f.store.step(by)
		f.audit.clockStepped()
	})
}

func (f *injector) leave(at time.Duration) {
	b, away := f.browsers[f.rng.IntN(len(f.browsers))], f.seconds(0.1, 4)
	if f.chance(30) {
		away = f.seconds(5, 30)
	}
	f.at(at, func() { b.events.put(event{leave: away}) })
}
