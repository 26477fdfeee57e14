//go:build simulation

package simulation

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// A seed replays exactly, in the same process and in another one.
func TestReplayIsExact(t *testing.T) {
	dir := newDatabase(t)
	for seed := uint64(1); seed <= 10; seed++ {
		first := simulate(t, seed, dir).Trace
		testkit.Equal(t, fmt.Sprintf("seed %d: difference of the second run", seed), compare(first, simulate(t, seed, dir).Trace), "")
		if seed <= 2 {
			testkit.Equal(t, fmt.Sprintf("seed %d: difference of another process", seed), compare(first, simulateElsewhere(t, seed)), "")
		}
	}
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

// compare returns the first difference of two traces.
func compare(first, second []string) string {
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
