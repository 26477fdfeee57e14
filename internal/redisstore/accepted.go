package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"telapi/internal/callback"
)

const (
	// acceptedFor is how long an accepted callback is remembered: longer than it takes to
	// notice a failover.
	acceptedFor = 20 * time.Second
	maxAccepted = 1 << 14
	// acceptedChecks is how many callbacks are checked at a time.
	acceptedChecks = 16
)

// acceptedCallbacks are the callbacks that this instance has accepted last, oldest first. A
// failover can lose them, and then nobody else knows of them: their providers are done, and
// their work items would delay the channel until they time out.
type acceptedCallbacks struct {
	mu   sync.Mutex
	list []acceptedCallback
}

type acceptedCallback struct {
	channelID, digest, epoch, use string
	at                            time.Time
}

// add adds a callback. use distinguishes callbacks with the same channel credential.
func (a *acceptedCallbacks) add(c callback.Credential, epoch, use string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for len(a.list) > 0 && (len(a.list) >= maxAccepted || now.Sub(a.list[0].at) > acceptedFor) {
		a.list = a.list[1:]
	}
	a.list = append(a.list, acceptedCallback{c.ChannelID, c.Digest, epoch, use, now})
}

func (a *acceptedCallbacks) all() []acceptedCallback {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clip(a.list) // its elements do not change
}

// checkAccepted makes the store report accepted callbacks that it has lost to the runtimes.
func (s *Store) checkAccepted(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(acceptedChecks)
	for _, c := range s.accepted.all() {
		group.Go(func() error {
			_, err := runScript(ctx, s, "check a callback", "check_callback", c.channelID, rueidis.RedisResult.ToString, c.digest, c.epoch, c.use)
			return err
		})
	}
	return group.Wait()
}

// replaced reports whether a server was restarted, or replaced by a replica, since the last
// call: then it has another replication ID. The client of a cluster may not notice that, because
// it may have had a connection to the replica before.
func (s *Store) replaced(ctx context.Context, client rueidis.Client) (replaced bool) {
	if s.opts.Embedded { // the engine ends with this process
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	nodes := client.Nodes()
	ids := make(chan string, len(nodes))
	for _, node := range nodes {
		// The ID of a server's data, which its replicas have too; empty if it does not reveal it.
		go func() { ids <- replicationInfo(ctx, node)["master_replid"] }()
	}
	isFirstCall := len(s.replicationIDs) == 0
	for range nodes {
		if id := <-ids; id != "" && !s.replicationIDs[id] {
			s.replicationIDs[id] = true
			replaced = !isFirstCall
		}
	}
	return replaced
}

// checkLast is checkAccepted for an instance that stops before it has noticed a failover.
func (s *Store) checkLast(ctx context.Context, client rueidis.Client) {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	if s.replaced(ctx, client) {
		_ = s.checkAccepted(ctx)
	}
}
