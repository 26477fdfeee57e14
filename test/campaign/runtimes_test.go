package campaign

import (
	"math/rand/v2"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

const (
	runtimeCuts = 1000
	// defaultResume is how long claims outlive a connection unless a runtime says otherwise.
	defaultResume = 2 * time.Second
	// releaseTime is how long the service may take to give the sessions of a dead runtime to
	// another one, in addition.
	releaseTime = 2 * time.Second
)

// Nothing is lost, received twice or out of order while the connections of runtimes, an
// instance or a runtime break with 200 live calls, or the instances restart.
func TestRuntimesSurviveFaults(t *testing.T) {
	if *scale == 0 {
		t.Parallel()
	}
	size := newSize(0)
	size.browsers, size.connections = 200, 20
	c := newCampaign(t, size, false, "")
	c.resume = time.Minute
	c.run(fault{name: "connections of runtimes are reset 1,000 times", prepare: restartRuntimes, inject: cutRuntimes}, 0)
	c.run(fault{name: "instance with runtimes killed (SIGKILL)", inject: killInstance}, 0)
	c.run(fault{name: "rolling restart of both instances behind HAProxy", inject: rollingRestart}, 0)
	c.resume = 0
	c.run(fault{name: "runtime killed (SIGKILL), another takes over", prepare: restartRuntimes, inject: takeOver}, 0)
	c.check(t)
}

// restartRuntimes starts the runtimes with the present settings.
func restartRuntimes(c *campaign) {
	for n := range c.runtimes {
		killRuntime(c, n)
	}
	c.probe(c.members())
}

// cutRuntimes resets established connections of runtimes at random times.
func cutRuntimes(c *campaign, _ int) {
	for cuts := 0; cuts < runtimeCuts && pause(c.ctx, 20*time.Millisecond); {
		for _, p := range c.runtimeProxies {
			for _, l := range p.Links() {
				// The requests before are those of TLS and HTTP, and hello.
				if l.Reads(harness.Requests) > 4 && rand.IntN(10) == 0 && cuts < runtimeCuts {
					l.Reset()
					cuts++
				}
			}
		}
	}
}

// takeOver kills a runtime process. The other one must have its sessions in time, by the
// standard of how long operations of other sessions take meanwhile.
func takeOver(c *campaign, _ int) {
	const dead = 0
	orphans := c.ledger.sessionsOf(dead)
	if len(orphans) == 0 {
		c.t.Fatal("the runtime has no sessions")
	}
	c.runtimes[dead].kill()
	killed := time.Now()
	testkit.Until(c.t, "the other runtime has all sessions", func() bool { return len(c.ledger.sessionsOf(dead)) == 0 })
	took, usual := time.Since(killed), c.ledger.slowest(killed, orphans)
	bound := defaultResume + releaseTime + 5*usual
	c.progress("   %d sessions were taken over in %s; other operations took up to %s", len(orphans), took.Round(time.Millisecond), usual.Round(time.Millisecond))
	if took > bound {
		c.t.Errorf("the sessions were taken over in %s, want %s at most", took, bound)
	}
	c.startRuntime(c.ctx, dead, c.ledger, c.provider)
}
