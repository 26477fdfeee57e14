// Command bench measures the service beside plain peers that do the same work
// without its checks, in one run and in turns, and prints ratios. Absolute
// figures belong to the machine; ratios carry over.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// settings are what every scenario is measured with.
type settings struct {
	rounds      int
	span        time.Duration
	connections int
}

func main() {
	var s settings
	flag.IntVar(&s.rounds, "rounds", 5, "rounds per server, in turns; the median counts")
	flag.DurationVar(&s.span, "span", 2*time.Second, "length of a round")
	flag.IntVar(&s.connections, "connections", 32, "kept-alive connections")
	peer := flag.Bool("peer", false, "run as the plain peer (used by bench itself)")
	flag.Parse()

	run := capabilities
	if *peer {
		run = servePeer
	}
	if err := run(s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
