//go:build !race

package simulation

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// A seed replays exactly, in the same process and in another one. Without the
// overlay, which make check uses in a step of its own, the Go scheduler makes runs
// differ.
func TestReplayIsExact(t *testing.T) {
	if !exact {
		return
	}
	dir := newDatabase(t)
	for seed := uint64(1); seed <= 10; seed++ {
		first, difference := simulate(t, seed, dir), ""
		for range attempts() {
			if difference = compare(first.Trace, simulate(t, seed, dir).Trace); difference == "" {
				break
			}
		}
		testkit.Equal(t, fmt.Sprintf("seed %d: difference of the second run", seed), difference, "")
		if seed > 2 {
			continue
		}
		for range attempts() {
			if difference = compare(first.Trace, simulateElsewhere(t, seed)); difference == "" {
				break
			}
		}
		testkit.Equal(t, fmt.Sprintf("seed %d: difference of another process", seed), difference, "")
	}
}

func attempts() int {
	if exact {
		return 1
	}
	return 10
}

// simulateElsewhere runs a seed in another process and returns its trace.
func simulateElsewhere(t *testing.T, seed uint64) (trace []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeeds$", "-test.v", "-seed", fmt.Sprint(seed)).Output()
	if err != nil {
		t.Fatalf("run seed %d in another process: %v\n%s", seed, err, out)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if event := strings.TrimPrefix(line, "        "); event != line && isEvent.MatchString(event) { // the log is indented
			trace = append(trace, event)
		}
	}
	return trace
}

// isEvent matches a line of a trace, which starts with the time.
var isEvent = regexp.MustCompile(`^ *[0-9]+\.[0-9]{6}  `)

// compare returns the first difference of two traces. Without the overlay it ignores
// the order of events.
func compare(first, second []string) string {
	if !exact {
		first, second = slices.Sorted(slices.Values(first)), slices.Sorted(slices.Values(second))
	}
	for i := range min(len(first), len(second)) {
		if first[i] != second[i] {
			return fmt.Sprintf("line %d is\n%s, then\n%s", i, first[i], second[i])
		}
	}
	if len(first) != len(second) {
		return fmt.Sprintf("%d lines, then %d", len(first), len(second))
	}
	return ""
}
