package campaign

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// The markers between which a file contains the results.
const (
	beginMarker = "<!-- results of make campaign -->\n"
	endMarker   = "<!-- end of the results -->\n"
)

// with adds the properties of a result to a row.
func (r row) with(result result) row {
	r.Recovery, r.MayLose = result.recovery, result.mayLose
	return r
}

// check fails the test if the row breaks a promise.
func (r row) check(t *testing.T) {
	t.Helper()
	if r.Silent > 0 || !r.MayLose && (r.Lost > 0 || r.Twice > 0 || r.Disordered > 0) {
		t.Errorf("%s: %d lost, %d of them without notice; %d twice, %d out of order\n%s", r.Fault, r.Lost, r.Silent, r.Twice, r.Disordered, cmp.Or(r.FirstSilent, r.FirstLost))
	}
}

func (r row) markdown() string {
	return fmt.Sprintf("| %s | %d | %d | %.1f |", r.Fault, r.Callbacks+r.Frames+r.Messages, r.Lost, r.Recovery.Round(100*time.Millisecond).Seconds())
}

// report returns one table for each kind of installation. results are in the order
// of stages.
func report(size size, results [][]row) string {
	rows, titles := map[string][]row{}, []string{}
	for i, s := range stages {
		if !slices.Contains(titles, s.title) {
			titles = append(titles, s.title)
		}
		rows[s.title] = append(rows[s.title], results[i]...)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s with `make campaign SCALE=%g`: %d browsers (%d in the reconnect storm) on %d cores, which also ran all servers.\n",
		time.Now().UTC().Format("2 January 2006"), *scale, size.browsers, size.storm, runtime.NumCPU())
	var total row
	for _, title := range titles {
		fmt.Fprintf(&b, "\n%s:\n\n| Fault | Acknowledged | Lost | Recovered in (s) |\n|---|---|---|---|\n", title)
		for _, r := range rows[title] {
			fmt.Fprintln(&b, r.markdown())
			total.Callbacks, total.Frames, total.Messages = total.Callbacks+r.Callbacks, total.Frames+r.Frames, total.Messages+r.Messages
			total.Twice, total.Disordered, total.Silent = total.Twice+r.Twice, total.Disordered+r.Disordered, total.Silent+r.Silent
		}
	}
	fmt.Fprintf(&b, "\nIn total %d callbacks, %d frames from browsers and %d messages to browsers were acknowledged. "+
		"%d arrived twice and %d out of order without a report of a loss; %d losses were not reported.\n",
		total.Callbacks, total.Frames, total.Messages, total.Twice, total.Disordered, total.Silent)
	return b.String()
}

// writeReport replaces the text between the markers of a file.
func writeReport(file, report string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(content), beginMarker)
	_, after, ended := strings.Cut(rest, endMarker)
	if !found || !ended {
		return fmt.Errorf("%s does not contain the markers %q and %q", file, beginMarker, endMarker)
	}
	return os.WriteFile(file, []byte(before+beginMarker+report+endMarker+after), 0o600)
}
