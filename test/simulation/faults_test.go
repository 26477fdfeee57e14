//go:build !race

// The race detector makes the search ten times as slow and changes the order of
// goroutines. make check also runs this package without it.

package simulation

import (
	"slices"
	"strings"
	"testing"
)

// finds runs seeds on code with a fault until a violation contains the given text.
// Without the fault, the same seed has no violation. It starts with a seed that is
// known to find the fault. Then it searches, because other code, or a run that does not
// replay exactly, may need another seed.
func finds(t *testing.T, m Mutation, violation string, known uint64) {
	t.Helper()
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
	dir := newDatabase(t)
	seeds := []uint64{known}
	for seed := range uint64(200) {
		seeds = append(seeds, seed+1)
	}
	for _, seed := range seeds {
		result := simulate(t, seed, dir, m)
		i := slices.IndexFunc(result.Violations, func(v string) bool { return strings.Contains(v, violation) })
		if i < 0 {
			continue
		}
		if fixed := simulate(t, seed, dir, Mutation{}); len(fixed.Violations) > 0 {
			continue // TestSeeds reports it
		}
		t.Logf("seed %d: %s", seed, result.Violations[i])
		return
	}
	t.Errorf("%d seeds have no violation that contains %q", len(seeds), violation)
}

// noDeadline removes the deadlines and the times of requests from the scripts.
var noDeadline = []Edit{
	{"if deadline ~= '' and now > tonumber(deadline) then", "if false then"},
	{"local function isOutdated(requestedAt, grantedAt)\n", "local function isOutdated(requestedAt, grantedAt)\n  do return false end\n"},
}

// noLossCheck removes the comparison of whole IDs from the scripts.
var noLossCheck = []Edit{
	{"local function isLost(stream, id, newest, removed)\n", "local function isLost(stream, id, newest, removed)\n  do return false end\n"},
	{"if toNumber(channel.connections) < toNumber(number) then return 'lost' end", ""},
}

// Each fault is one that the service once had.
func TestSimulationFindsFaults(t *testing.T) {
	withoutCancelledCheck := []Edit{{"if string.find(' ' .. channel.cancelled .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then", "if false then"}}
	withoutLeaseCheck := []Edit{{"elseif channel.owner ~= '' and channel.owner ~= liveConnection and now >= toNumber(channel.ownerUntil) then", "elseif false then"}}
	for name, tt := range map[string]struct {
		mutation  Mutation
		violation string
		seed      uint64
	}{
		"late handshake": {Mutation{Edits: noDeadline}, "a handshake", 3},
		"late claim":     {Mutation{Edits: noDeadline}, "replaced the claim", 81},
		// The connection to the store breaks before the deadline of a handshake.
		"failed handshake takes effect": {Mutation{Edits: withoutCancelledCheck}, "after it had failed", 113},
		"lost reply to await":           {Mutation{KeepUnknownItems: true}, "accepted, but its result is not on the stream", 90},
		"loss is not reported":          {Mutation{Edits: noLossCheck}, "acknowledged and then lost", 62},
		"connection lost in a failover": {Mutation{Edits: noLossCheck}, "closed as replaced", 95},
		"disconnect is not reported":    {Mutation{Edits: withoutLeaseCheck}, "that the browser is gone", 18},
		"browser action is lost":        {Mutation{ForgetRepeatedActions: true}, "not in the database", 21},
	} {
		t.Run(name, func(t *testing.T) { finds(t, tt.mutation, tt.violation, tt.seed) })
	}
}
