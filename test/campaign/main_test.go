// Package campaign injects faults into a complete installation under load and
// compares everything that was acknowledged with everything that arrived.
//
// `make campaign` runs it in full size and writes the results to
// docs/campaign.md. `make check` runs a small version.
package campaign

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"telapi/test/testkit"
)

// envRuntime makes the test binary a runtime process. It contains runtimeOptions.
const envRuntime = "CAMPAIGN_RUNTIME"

var (
	scale = flag.Float64("scale", 0, "size of the campaign; 1: 1,000 browsers and 100,000 operations; 0: the small version of make check")
	count = flag.Int("operations", 0, "minimum number of operations; 0: 100,000 times the scale")
	only  = flag.String("only", "", "inject only faults whose name contains this text")
	write = flag.String("write", "", "file to write the results to, between its markers")
)

// TestMain runs the tests, or a runtime if the environment requests it.
func TestMain(m *testing.M) {
	if options := os.Getenv(envRuntime); options != "" {
		fmt.Fprintln(os.Stderr, "runtime:", runRuntime(options))
		os.Exit(1)
	}
	flag.Parse()
	raiseFileLimit()
	testkit.Main(m)
}

// raiseFileLimit lets this process and its servers open enough files for the sockets of the
// storm, each of which needs three in this process. Only root can raise it above the hard limit.
func raiseFileLimit() {
	want := uint64(4*newSize(*scale).storm + 5000)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= want {
		return
	}
	limit.Cur, limit.Max = want, max(limit.Max, want)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		fmt.Fprintf(os.Stderr, "cannot open %d files, so sockets may fail: %v\n", want, err)
	}
}

// size is the size of a campaign.
type size struct {
	browsers   int              // with a conversation
	storm      int              // sockets in the reconnect storm
	operations int              // at least, in total
	cycles     int              // how often each fault is injected
	rate       int              // operations started per second
	replicas   int              // of each master of a cluster
	ping       time.Duration    // of sockets
	reconnect  [2]time.Duration // minimum and maximum of the bound of reconnect delays
}

func newSize(scale float64) size {
	if scale == 0 {
		return size{browsers: 20, storm: 60, cycles: 1, rate: 50, replicas: 1, ping: time.Second,
			reconnect: [2]time.Duration{100 * time.Millisecond, 2 * time.Second}}
	}
	scaled := func(n int) int { return max(20, int(float64(n)*scale)) }
	return size{
		browsers: scaled(1000), storm: scaled(5000), operations: cmp.Or(*count, scaled(100_000)), cycles: 2, rate: scaled(300), replicas: 2,
		ping:      25 * time.Second,                                // the default
		reconnect: [2]time.Duration{time.Second, 30 * time.Second}, // as in the SDK
	}
}
