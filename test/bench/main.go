// Command bench compares telapi with baselines: minimal servers that do the same
// work without checks, one that a team could write with Node and Socket.IO, and
// nginx. It runs both alternately and prints ratios.
// Absolute figures depend on the machine; ratios are comparable between machines.
// Scenarios growth and turns have no baseline: they compare telapi with itself at another size.
package main

import (
	"flag"
	"fmt"
	"strings"
	"time"

	"telapi/test/testkit"
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

var scenarios = []struct {
	name string
	run  func(*site, settings)
}{
	{"conversation", conversation},
	{"frames-in", framesIn},
	{"frames-out", framesOut},
	{"callbacks", callbacks},
	{"first-audio", firstAudio},
	{"connect", connect},
	{"memory", memory},
	{"media-puts", mediaPuts},
	{"media-gets", mediaGets},
	{"growth", growth},
	{"turns", turns},
}

// program stands for a test: servers that it starts end with StopShared.
var program = testkit.Lasting{TB: testkit.Console{}}

// check ends the program after an error.
func check(err error) {
	if err != nil {
		program.Fatal("bench: ", err)
	}
}

// must returns the value of a call that succeeded.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func main() {
	var s settings
	var only, peer, redis string
	var names []string
	for _, c := range scenarios {
		names = append(names, c.name)
	}
	flag.IntVar(&s.rounds, "rounds", 5, "rounds per server; the median counts")
	flag.DurationVar(&s.span, "span", 2*time.Second, "duration of a round")
	flag.IntVar(&s.connections, "connections", 32, "connections that send requests or open sockets")
	flag.IntVar(&s.sockets, "sockets", 64, "sockets that send or receive frames")
	// A busy socket has several frames in flight: a page may send 256 frames
	// before the first acknowledgement, and a model produces text in bursts.
	flag.IntVar(&s.inFlight, "in-flight", 8, "frames in flight on each socket")
	flag.IntVar(&s.idle, "idle", 10_000, "idle sockets in scenario memory")
	flag.StringVar(&only, "only", "", "run one scenario: "+strings.Join(names, ", ")+" (default all)")
	flag.StringVar(&peer, "peer", "", "run as a baseline server (used internally)")
	flag.StringVar(&redis, "redis", "", "address of the baseline server's Redis (used internally)")
	flag.Parse()
	if peer != "" {
		servePeer(peer, redis)
	}
	defer testkit.StopShared()
	at := openSite()
	found := false
	for _, c := range scenarios {
		if only == "" || only == c.name {
			found = true
			fmt.Printf("\n%s: ", c.name)
			c.run(at, s)
		}
	}
	if !found {
		check(fmt.Errorf("unknown scenario %q: use one of %s", only, strings.Join(names, ", ")))
	}
}
