// Command bench measures the service beside plain peers that do the same work
// without its checks, in one run and in turns, and prints ratios. Absolute
// figures belong to the machine; ratios carry over.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// settings are what every scenario is measured with.
type settings struct {
	rounds      int
	span        time.Duration
	connections int
	sockets     int
	inFlight    int
	idle        int
}

// scenario is one figure, or a few that are measured together.
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
}

func main() {
	var s settings
	var only, peer string
	flag.IntVar(&s.rounds, "rounds", 5, "rounds per server, in turns; the median counts")
	flag.DurationVar(&s.span, "span", 2*time.Second, "length of a round")
	flag.IntVar(&s.connections, "connections", 32, "kept-alive connections that send requests, or open sockets")
	flag.IntVar(&s.sockets, "sockets", 64, "sockets that carry frames")
	// A page may have 256 frames unacknowledged, a model's words come faster than
	// they are heard: several under way is what a busy socket looks like.
	flag.IntVar(&s.inFlight, "in-flight", 8, "frames under way at a time on each of them")
	flag.IntVar(&s.idle, "idle", 10_000, "sockets that are open and idle when memory is measured")
	flag.StringVar(&only, "only", "", "one scenario: "+strings.Join(names(), ", ")+" (default all)")
	flag.StringVar(&peer, "peer", "", "run as a plain peer (used by bench itself)")
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

// measure runs the scenarios one after the other on the same stores.
func measure(only string, s settings) (err error) {
	at, err := openSite()
	if err != nil {
		return err
	}
	defer at.close()
	fmt.Printf("stores: %s, %s; %d rounds, in turns, medians\n", at.kv, at.database, s.rounds)
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
		return errors.New("there is no scenario " + only + "; there are " + strings.Join(names(), ", "))
	}
	return nil
}
