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
var trapScripts = []string{"await", "await", "callback", "cancel", "claim", "commit", "connect", "connect", "detach", "frame", "frame", "renew", "revoke", "send", "stream"}

// draw adds one fault, or several that are worse together.
func (f *injector) draw(at time.Duration) {
	switch n := f.rng.IntN(110); {
	case n < 15:
		f.loseReply(at)
	case n < 30:
		f.holdRequest(at)
	case n < 38:
		f.stall(at)
	case n < 42 || n < 53 && f.ping > slowPing:
		f.dropNotices(at)
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
	case n < 82 && f.replicas > 0:
		f.awayReplica(at)
	case n < 88:
		f.failover(at)
	case n < 92:
		f.stepClock(at)
	case n < 100:
		f.leave(at)
	case n < 105 && f.replicas > 0:
		f.awayReplica(at)
	case n < 105:
		f.loseUnreceived(at)
	default:
		f.holdResume(at)
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
	if t.script == "frame" && f.chance(70) {
		f.holdFrame(at)
		return
	}
	f.at(at, func() { f.store.setTrap(t) })
	switch t.script {
	case "connect", "detach":
		f.reconnectBrowsers(at + time.Millisecond)
	case "claim": // a runtime that resumes its claims, and again on another connection
		r := f.runtimes[f.rng.IntN(len(f.runtimes))]
		f.reconnectRuntime(at+time.Millisecond, r)
		f.reconnectRuntime(at+f.seconds(0.2, 1.5), r)
	}
}

// holdFrame holds frames of a connection until another one has taken the session over, if that
// goes through the other instance. They must not be added then.
func (f *injector) holdFrame(at time.Duration) {
	away := f.seconds(0.05, 0.5)
	reconnect := func() {
		for _, b := range f.browsers {
			b.events.put(event{leave: away})
		}
	}
	t := trap{script: "frame", hold: away + f.seconds(0.5, 3), then: reconnect}
	f.at(at, func() {
		f.store.setTrap(t)
		for _, b := range f.browsers {
			b.events.put(event{compose: true})
		}
	})
}

// holdResume makes a runtime resume a claim twice. The first request arrives after the second
// one, if that goes through the other instance, and must not win.
func (f *injector) holdResume(at time.Duration) {
	record, again := f.ledger.channels[f.rng.IntN(len(f.ledger.channels))], f.seconds(0.3, 1.2)
	reconnect := func() {
		if p := record.runtime(); p != nil && !f.faultsEnded() {
			f.trace("scheduler", "resets the connections of %s", p.host.name)
			f.ledger.trouble(time.Second)
			p.host.reset(true)
		}
	}
	t := trap{script: "claim", action: "resume", hold: again + f.seconds(1, 3.5), then: func() { time.AfterFunc(again, reconnect) }}
	f.at(at, func() {
		f.store.setTrap(t)
		reconnect()
	})
}

// reconnectRuntime breaks the connection of a runtime.
func (f *injector) reconnectRuntime(at time.Duration, r *runtimeNode) {
	effect := f.chance(80)
	f.at(at, func() {
		if p := r.current(); p != nil {
			f.trace("scheduler", "resets the connections of %s (effect: %v)", p.host.name, effect)
			f.ledger.trouble(time.Second)
			p.host.reset(effect)
		}
	})
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

// stall holds the bytes between an instance and the store, or a runtime and an instance.
func (f *injector) stall(at time.Duration) {
	side, length, link, all := direction(f.rng.IntN(2)), f.seconds(0.5, 8), f.rng.IntN(4), f.chance(50)
	h := f.client()
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "stalls %s (direction %d, all: %v) for %v", h.name, side, all, length)
		f.ledger.trouble(length)
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

// client returns an instance or a runtime.
func (f *injector) client() func() *host {
	i, r, service := f.anyInstance(), f.runtimes[f.rng.IntN(2)], f.chance(50)
	return func() *host {
		if p := i.current(); p != nil && service {
			return p.host
		}
		if p := r.current(); p != nil {
			return p.host
		}
		return newHost(f.world, "none")
	}
}

func (f *injector) reset(at time.Duration) {
	h, effect := f.client(), f.chance(50)
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "resets the connections of %s (effect: %v)", h.name, effect)
		f.ledger.trouble(time.Second)
		h.reset(effect)
	})
}

// slowPing is a ping interval so long that a browser does not get a message with a lost notice in
// time.
const slowPing = 20 * time.Second

// dropNotices breaks the subscriptions of an instance, which cannot connect to the store for a
// while. Its other connections stay. Messages are sent meanwhile.
func (f *injector) dropNotices(at time.Duration) {
	i, length := f.anyInstance(), f.seconds(0.5, 4)
	f.at(at, func() {
		if p := i.current(); p != nil {
			f.trace("scheduler", "breaks the subscriptions of %s for %v", p.host.name, length)
			f.ledger.trouble(length)
			p.host.refuse(length)
			f.store.breakSubscriptions(p.host)
		}
	})
	f.at(at+length/2, func() {
		for _, r := range f.ledger.channels {
			r.nudge()
		}
	})
}

func (f *injector) slow(at time.Duration) {
	h, slow, length := f.client(), f.seconds(0.01, 0.4), f.seconds(1, 8)
	f.at(at, func() {
		h := h()
		f.trace("scheduler", "slows %s down by up to %v for %v", h.name, slow, length)
		f.ledger.trouble(length)
		h.setSlow(slow)
		time.AfterFunc(length, func() { h.setSlow(0) })
	})
}

// crashInstance also lets the users of the instance go, sometimes.
func (f *injector) crashInstance(at time.Duration) {
	i, silent, effect, gone, away := f.anyInstance(), f.chance(30), f.chance(50), f.chance(50), f.seconds(28, 55)
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
	r, effect, graceful := f.runtimes[f.rng.IntN(2)], f.chance(50), f.chance(30)
	f.at(at, func() {
		if graceful {
			r.stop()
		} else {
			r.crash(effect)
		}
	})
	f.at(at+f.seconds(0.2, 20), r.start)
}

func (f *injector) restartInstance(at time.Duration) {
	i := f.anyInstance()
	f.at(at, i.stop)
	f.at(at+f.seconds(0.2, 3), i.start)
}

func (f *injector) anyInstance() *instance { return f.instances[f.rng.IntN(len(f.instances))] }

// delete deletes the session of a browser, or revokes it.
func (f *injector) delete(at time.Duration) {
	b, revoke := f.browsers[f.rng.IntN(len(f.browsers))], f.chance(50)
	f.at(at, func() { f.running.Go(func() { f.deleteSession(b.record, revoke) }) })
}

// fillDisk keeps the embedded store from being saved.
func (f *injector) fillDisk(at time.Duration) {
	length := f.seconds(1, 15)
	f.at(at, func() {
		f.trace("scheduler", "fills the disk for %v", length)
		f.disk.fill(length)
	})
}

// awayReplica disconnects a replica, often for longer than a caller of WAIT waits. Often the
// node fails over meanwhile, and then often so late that callers have stopped waiting: what
// they acknowledge without the replica is lost.
func (f *injector) awayReplica(at time.Duration) {
	node, length := f.rng.IntN(f.nodes), f.seconds(0.1, 12)
	if f.chance(50) {
		length = f.seconds(7, 12)
		f.failOverTo(node, at+length-f.seconds(0.1, 1))
	}
	f.at(at, func() {
		f.trace("scheduler", "disconnects the replica of node %d for %v", node, length)
		f.ledger.trouble(length)
		f.store.awayReplica(node, length)
	})
	if f.chance(50) {
		f.failOverTo(node, at+f.seconds(0, length.Seconds()))
	}
}

// failover loses the newest writes. Often the newest write is a connection. The clock of
// the replica differs, sometimes.
func (f *injector) failover(at time.Duration) {
	if f.embedded {
		f.fillDisk(at)
		return
	}
	f.failOverTo(f.rng.IntN(f.nodes), at)
}

// failOverTo replaces a node by its replica.
func (f *injector) failOverTo(node int, at time.Duration) {
	lag, outage, survive := f.seconds(0, 1.2), f.seconds(0.05, 3), f.chance(50)
	away := f.seconds(0, 4)
	if f.chance(30) {
		f.stepClock(at)
	}
	if f.chance(50) {
		outage = f.seconds(0.01, 0.3)
	}
	if f.chance(50) {
		f.reconnectBrowsers(at - f.seconds(0, 1))
	}
	f.at(at, func() {
		f.ledger.trouble(outage + away)
		f.failOver(node, time.Now().Add(-lag), outage, survive)
		f.store.awayReplica(node, away)
	})
}

// loseUnreceived loses frames that no runtime has received, together with the end of their
// connection. Only that connection knows that they were acknowledged.
func (f *injector) loseUnreceived(at time.Duration) {
	for _, r := range f.runtimes {
		f.at(at-f.seconds(1.2, 2), r.stop)
		f.at(at+f.seconds(1, 5), r.start)
	}
	if f.embedded {
		return
	}
	away, node, outage, survive := f.seconds(0.5, 4), f.rng.IntN(f.nodes), f.seconds(0.01, 0.2), f.chance(50)
	f.at(at-f.seconds(0.4, 0.5), func() {
		for _, b := range f.browsers {
			b.events.put(event{compose: true})
		}
	})
	f.at(at-f.seconds(0.1, 0.3), func() {
		for _, b := range f.browsers {
			b.events.put(event{leave: away})
		}
	})
	f.at(at, func() {
		f.ledger.trouble(outage)
		f.failOver(node, time.Now().Add(-time.Second), outage, survive)
	})
}

func (f *injector) stepClock(at time.Duration) {
	by, node := f.seconds(-2, 2), f.rng.IntN(f.nodes)
	f.at(at, func() {
		f.trace("scheduler", "steps the clock of node %d by %v", node, by)
		f.ledger.trouble(by.Abs())
		f.store.step(node, by)
		f.audit.clockStepped()
	})
}

func (f *injector) leave(at time.Duration) {
	b, away := f.browsers[f.rng.IntN(len(f.browsers))], f.seconds(0.1, 4)
	if f.chance(30) {
		away = f.seconds(5, max(30, (f.active-at).Seconds()))
	}
	f.at(at, func() { b.events.put(event{leave: away}) })
}
