//go:build !race

// The race detector makes the search ten times as slow and changes the order of
// goroutines. make test also runs this package without it.

package simulation

import (
	"slices"
	"strings"
	"testing"
)

// finds runs seeds with a fix taken out until a violation contains the given
// text. With the fix, the same seed has no violation. It starts with a seed that
// is known to find the fault. Then it searches, because other code, or a run that
// does not replay exactly, may need another seed.
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

// noDeadline takes the deadlines and the times of requests out of the scripts.
var noDeadline = []Edit{
	{"if deadline ~= '' and not (now <= (tonumber(deadline) or 0)) then", "if false then"},
	{"local function isOutdated(requestedAt, grantedAt)\n", "local function isOutdated(requestedAt, grantedAt)\n  do return false end\n"},
}

// noLossCheck takes the comparison of whole IDs out of the scripts.
var noLossCheck = []Edit{
	{"local function isLost(stream, id, newest, removed)\n", "local function isLost(stream, id, newest, removed)\n  do return false end\n"},
	{"if toNumber(channel.connections) < toNumber(number) then return 'lost' end", ""},
}

func TestSimulationFindsFault1LateHandshake(t *testing.T) {
	finds(t, Mutation{Edits: noDeadline}, "a handshake", 3)
}

func TestSimulationFindsFault1LateClaim(t *testing.T) {
	finds(t, Mutation{Edits: noDeadline}, "replaced the claim", 81)
}

// The connection to the store breaks before the deadline of a handshake.
func TestSimulationFindsFault1FailedHandshake(t *testing.T) {
	edit := Edit{"if string.find(' ' .. channel.cancelled .. ' ', ' ' .. ARGV[1] .. ' ', 1, true) then", "if false then"}
	finds(t, Mutation{Edits: []Edit{edit}}, "after it had failed", 113)
}

func TestSimulationFindsFault2LostAwait(t *testing.T) {
	finds(t, Mutation{KeepUnknownItems: true}, "accepted, but its result is not on the stream", 90)
}

func TestSimulationFindsFault3SilentLoss(t *testing.T) {
	finds(t, Mutation{Edits: noLossCheck}, "acknowledged and then lost", 62)
}

func TestSimulationFindsFault3LostConnection(t *testing.T) {
	finds(t, Mutation{Edits: noLossCheck}, "closed as replaced", 95)
}

func TestSimulationFindsFault5MissedDisconnect(t *testing.T) {
	edit := Edit{"elseif channel.owner ~= '' and channel.owner == channel.leasedTo and channel.owner ~= liveConnection and now >= toNumber(channel.ownerUntil) then", "elseif false then"}
	finds(t, Mutation{Edits: []Edit{edit}}, "that the browser is gone", 18)
}

func TestSimulationFindsFault8LostAction(t *testing.T) {
	finds(t, Mutation{ForgetRepeatedActions: true}, "not in the database", 21)
}
