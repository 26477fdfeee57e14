package kv

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/background"
)

const (
	beaconInterval = time.Second
	// beaconRounds is the number of intervals after which a round is checked. A
	// connection that stops delivering messages is noticed within beaconRounds+1
	// intervals.
	beaconRounds = 4
	// publishTimeout is shorter than a round, so that a beacon has time to arrive.
	publishTimeout = 2 * time.Second
)

// beacons tests whether a link delivers messages. It publishes test messages, called
// beacons, through every node of the store, and counts those that arrive on the link.
type beacons struct {
	client     rueidis.Client
	topic      string
	publishing *background.Group

	mu     sync.Mutex
	number int      // of the newest round
	rounds []*round // the oldest first
}

// round is one beacon through each node.
type round struct {
	number    int
	published int             // nodes that accepted the beacon
	arrived   map[string]bool // addresses of the nodes whose beacon arrived
}

func newBeacons(client rueidis.Client) *beacons {
	return &beacons{client: client, topic: BeaconPrefix + rand.Text(), publishing: background.NewGroup()}
}

// next checks the round of beaconRounds intervals ago and starts a new one. It counts
// intervals instead of measuring time, so that a process that was suspended can read
// the beacons of a round before it checks the round.
//
// It returns an error if no beacon of the round arrived, or fewer than half of those
// that nodes accepted. A few may be missing although the link works, because a node
// has left the cluster.
func (b *beacons) next() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rounds) == beaconRounds {
		r := b.rounds[0]
		b.rounds = b.rounds[1:]
		if arrived := len(r.arrived); arrived == 0 || 2*arrived < r.published {
			return fmt.Errorf("received %d of %d test messages", arrived, r.published)
		}
	}
	b.number++
	r := &round{number: b.number, arrived: map[string]bool{}}
	b.rounds = append(b.rounds, r)
	for address, node := range b.client.Nodes() {
		_ = b.publishing.Go(context.Background(), func(ctx context.Context) { b.send(ctx, r, address, node) }) // fails if the link has ended
	}
	return nil
}

func (b *beacons) send(ctx context.Context, r *round, address string, node rueidis.Client) {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	message := strconv.Itoa(r.number) + " " + address
	if node.Do(ctx, node.B().Publish().Channel(b.topic).Message(message).Build().ToRetryable()).Error() == nil {
		b.mu.Lock()
		r.published++
		b.mu.Unlock()
	}
}

// receive counts a beacon that arrived.
func (b *beacons) receive(message string) {
	number, address, _ := strings.Cut(message, " ")
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rounds {
		if strconv.Itoa(r.number) == number {
			r.arrived[address] = true
		}
	}
}
