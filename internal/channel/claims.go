package channel

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/background"
)

const (
	// claimInterval is how often Run looks for sessions without a runtime.
	claimInterval = 5 * time.Second
	// claimBatch is the number of sessions per query.
	claimBatch = 500
)

// Claim tells whether a runtime has claimed a session.
type Claim struct {
	Claimed bool
	Offered bool          // the session was offered since it became unclaimed
	Waiting time.Duration // since when it is unclaimed
}

// Run looks for sessions of open connections that no runtime has claimed, and
// offers those that were not offered yet. It returns when ctx ends. Frames,
// callbacks and runtimes that release a claim cause an offer without waiting for
// it.
func (s *Service) Run(ctx context.Context) {
	for background.Sleep(ctx, claimInterval) == nil {
		s.checkClaims(ctx)
	}
}

// checkClaims updates the metrics of claims, so that a scrape needs no query. They
// keep their values while the store is unavailable.
func (s *Service) checkClaims(ctx context.Context) {
	claimed, waiting, oldest := 0, 0, time.Duration(0)
	for batch := range slices.Chunk(s.open.list(), claimBatch) {
		ids := make([]string, len(batch))
		for i, c := range batch {
			ids[i] = c.session.SessionID
		}
		claims, err := s.claims(ctx, ids)
		if err != nil {
			return
		}
		for i, c := range batch {
			switch claim := claims[i]; {
			case claim == nil: // the channel has ended, or the heartbeat will find that it is lost
			case claim.Claimed:
				claimed++
			default:
				waiting++
				oldest = max(oldest, min(claim.Waiting, s.now().Sub(c.openedAt)))
				if !claim.Offered || c.reoffer.Load() {
					s.run(c.Heartbeat)
				}
			}
		}
	}
	s.metrics.claimed.Set(float64(claimed))
	s.metrics.waiting.Set(float64(waiting))
	s.metrics.oldestWait.Set(oldest.Seconds())
}

func (s *Service) claims(ctx context.Context, ids []string) ([]*Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return s.store.Claims(ctx, ids)
}

// Reoffer offers an unclaimed session in the background. offer is a wire.Offer as
// JSON.
func (s *Service) Reoffer(offer []byte) {
	s.run(func(ctx context.Context) {
		var o wire.Offer
		err := json.Unmarshal(offer, &o)
		if err == nil {
			err = s.offer(ctx, o)
		}
		if err != nil {
			s.log.WarnContext(ctx, "session not offered to runtimes", "session_id", o.SessionID, "error", err)
		}
	})
}

func (s *Service) offer(ctx context.Context, o wire.Offer) error {
	err := s.store.Offer(ctx, o)
	if err == nil {
		s.metrics.offers.Inc()
	}
	return err
}

// connectionSet holds the open connections of a service.
type connectionSet struct {
	mu  sync.Mutex
	set map[*Connection]struct{}
}

func (o *connectionSet) add(c *Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.set == nil {
		o.set = map[*Connection]struct{}{}
	}
	o.set[c] = struct{}{}
}

func (o *connectionSet) remove(c *Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.set, c)
}

func (o *connectionSet) list() []*Connection {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.set))
}
