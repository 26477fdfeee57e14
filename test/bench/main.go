// Command bench compares telapi with baselines: minimal servers that do the same
// work without checks, and nginx. It runs both alternately and prints ratios.
// Absolute figures depend on the machine; ratios are comparable between machines.
// Scenario growth has no baseline: it compares telapi with itself at another size.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// settings are the command-line flags.
type settings struct {
	rounds      int
	span        time.Duration
	connections int
	sockets     int
	inFlight    int
	idle        int
}

// scenario is one benchmark.
type scenario struct {
	name string
	run  func(*site, settings) error
}

var scenarios = []scenario{
	{"capabilities", capabilities},
	{"frames-in", framesIn},
	{"frames-out", framesOut},
	{"audio-out", audioOut},
	{"callbacks", callbacks},
	{"connect", connect},
	{"memory", memory},
	{"media-puts", mediaPuts},
	{"media-gets", mediaGets},
	{"arrivals", arrivals},
	{"claims", claims},
	{"growth", growth},
}

func main() {
	var s settings
	var only, peer string
	flag.IntVar(&s.rounds, "rounds", 5, "rounds per server; the median counts")
	flag.DurationVar(&s.span, "span", 2*time.Second, "duration of a round")
	flag.IntVar(&s.connections, "connections", 32, "connections that send requests or open sockets")
	flag.IntVar(&s.sockets, "sockets", 64, "sockets that send or receive frames")
	// A busy socket has several frames in flight: a page may send 256 frames
	// before the first acknowledgement, and a model produces text in bursts.
	flag.IntVar(&s.inFlight, "in-flight", 8, "frames in flight on each socket")
	flag.IntVar(&s.idle, "idle", 10_000, "idle sockets in scenario memory")
	flag.StringVar(&only, "only", "", "run one scenario: "+strings.Join(names(), ", ")+" (default all)")
	flag.StringVar(&peer, "peer", "", "run as a baseline server (used internally)")
	flag.Parse()

	err := error(nil)
	if peer != "" {
		err = servePeer(peer)
	} else {
		err = measure(only, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func names() (list []string) {
	for _, c := range scenarios {
		list = append(list, c.name)
	}
	return list
}

// measure runs the scenarios with the same stores.
func measure(only string, s settings) (err error) {
	at, err := openSite()
	if err != nil {
		return err
	}
	defer at.close()
	fmt.Printf("stores: %s, %s; medians of %d alternating rounds\n", at.kv, at.database, s.rounds)
	found := false
	for _, c := range scenarios {
		if only != "" && only != c.name {
			continue
		}
		found = true
		fmt.Printf("\n%s: ", c.name)
		if err := c.run(at, s); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if !found {
		return fmt.Errorf("unknown scenario %q: use one of %s", only, strings.Join(names(), ", "))
	}
	return nil
}
