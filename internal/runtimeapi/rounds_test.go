package runtimeapi

import (
	"errors"
	"testing"
	"time"
)

// After an outage, other instances have time to keep their connections. Late rounds alone are
// not an outage each.
func TestExpiredConnectionsAreSweptThoughRoundsAreLate(t *testing.T) {
	const late = time.Second
	outage := errors.New("outage")
	var r rounds
	now := time.Now()
	for i, round := range []struct {
		took time.Duration
		err  error
		want bool
	}{
		{tickInterval, nil, false}, // the first round
		{instanceGrace, nil, false},
		{tickInterval, nil, true},
		{late, nil, false},
		{late, nil, false},
		{late, nil, true},
		{late, nil, true},
		{10 * time.Second, outage, false},
		{late, nil, false},
		{late, nil, false},
		{late, nil, true},
		{tickInterval, nil, true},
		{late, outage, false},
		{tickInterval, nil, false},
	} {
		now = now.Add(round.took)
		if got := r.end(now, round.err); got != round.want {
			t.Errorf("round %d, which took %v and ended with %v: sweep %v, want %v", i, round.took, round.err, got, round.want)
		}
	}
}
