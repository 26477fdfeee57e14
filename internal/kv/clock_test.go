package kv

import (
	"fmt"
	"testing"
	"time"

	"telapi/test/testkit"
)

// The nodes of a cluster can disagree. A script must run on each of them, and a request
// must not be older than one that any of them has granted.
func TestSkewedNodes(t *testing.T) {
	now := time.Since(started)
	precision := 10 * time.Millisecond
	nodes := map[string]sample{"behind": {origin: time.Hour, precision: precision}, "ahead": {origin: time.Hour + 5*time.Second, precision: precision}}
	var c Clock
	if c.At("", time.Now()) != "" || c.Window("", time.Now()) != "" {
		t.Error("the clock has a time before it was measured")
	}
	c.estimate.Store(newEstimate(nodes, nil))
	var from, until, requested int64
	testkit.Must(t, testkit.ErrorOf(fmt.Sscan(c.Window("", started.Add(now+time.Second)), &from, &until)))
	testkit.Must(t, testkit.ErrorOf(fmt.Sscan(c.At("", time.Now()), &requested)))
	behind, ahead := (now + time.Hour).Milliseconds(), (now + time.Hour + 5*time.Second).Milliseconds()
	if behindNow := (time.Since(started) + time.Hour).Milliseconds(); from < behind-100 || from > behindNow {
		t.Errorf("the window starts at %d, want %d, the time of the node that is behind", from, behind)
	}
	if until > ahead+1000 || until < ahead+900 {
		t.Errorf("the window ends at %d, want %d, by the node that is ahead", until, ahead+1000)
	}
	if requested < ahead {
		t.Errorf("the request is of %d, before %d, the time of the node that is ahead", requested, ahead)
	}
}

// If it is known which node has a channel, its clock alone counts: a script that arrives late
// has no effect on a node that is behind, and requests keep their order.
func TestChannelHasClockOfItsNode(t *testing.T) {
	nodes := map[string]sample{"behind:1": {origin: time.Hour}, "ahead:1": {origin: time.Hour + 5*time.Second}}
	var c Clock
	c.estimate.Store(newEstimate(nodes, []slotRange{{0, 8191, "behind:1"}, {8192, 16383, "ahead:1"}}))
	for id, origin := range map[string]time.Duration{"a": nodes["ahead:1"].origin, "b": nodes["behind:1"].origin} { // slots 15495 and 3300
		var from, until, requested int64
		before := time.Since(started)
		deadline := before + time.Second
		testkit.Must(t, testkit.ErrorOf(fmt.Sscan(c.Window(id, started.Add(deadline))+" "+c.At(id, time.Now()), &from, &until, &requested)))
		now := (time.Since(started) + origin).Milliseconds()
		if until != (deadline+origin).Milliseconds() || requested > now || requested < (before+origin).Milliseconds() || from > requested {
			t.Errorf("%s: window %d to %d, requested at %d; it is %d on its node", id, from, until, requested, now)
		}
	}
}
