package runtimeapi

import (
	"errors"
	"testing"
	"time"

	"telapi/internal/calls"
	"telapi/test/embedded"
	"telapi/test/testkit"
)

// After an outage, other instances have time to keep their connections. Late rounds alone are
// not an outage each.
func TestExpiredConnectionsAreSweptThoughRoundsAreLate(t *testing.T) {
	const late = time.Second
	outage := errors.New("outage")
	var r rounds
	now := time.Now()
	for i, round := range []struct {
		took        time.Duration
		err         error
		sweep, slow bool
	}{
		{tickInterval, nil, false, true}, // the first round
		{longestRound, nil, false, true},
		{tickInterval, nil, true, false},
		{late, nil, false, true},
		{2 * storeTimeout, nil, false, true},
		{late, nil, true, true},
		{late, nil, true, true},
		{10 * time.Second, outage, false, true},
		{late, nil, false, true},
		{2 * storeTimeout, nil, false, true},
		{late, nil, true, true},
		{tickInterval, nil, true, false},
		{late, outage, false, true},
		{tickInterval, nil, false, true},
	} {
		now = now.Add(round.took)
		if sweep, slow := r.end(now, round.err); sweep != round.sweep || slow != round.slow {
			t.Errorf("round %d, which took %v and ended with %v: sweep %v, slow %v, want %v and %v", i, round.took, round.err, sweep, slow, round.sweep, round.slow)
		}
	}
}

// Other instances may sweep while the store is slow, so a connection must not expire between two
// rounds.
func TestLifetimesAreLongerWhileStoreIsSlow(t *testing.T) {
	c, _ := newConn(t)
	r, err := calls.New(calls.Options{Store: embedded.Open(t).ClientOption(), Name: "r", Lease: Lease})
	testkit.Must(t, err)
	r.Close()
	c.service.Connect = func() (*calls.Runtime, error) { return r, nil }
	usual := c.service.lifetime(c).Left
	defer testkit.Start(t, c.service.Run)()
	testkit.Until(t, "a longer lifetime", func() bool { return c.service.lifetime(c).Left == usual+storeTimeout })
}
