package channel

import (
	"context"
	"slices"
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
	Waiting time.Duration // how long it has been unclaimed
}

// Run looks for sessions of open connections that no runtime has claimed, and
// offers those that were not offered yet, until ctx ends. Frames, callbacks and runtimes
// that release a claim cause an offer at once.
func (s *Service) Run(ctx context.Context) {
	for background.Sleep(ctx, claimInterval) == nil {
		s.checkClaims(ctx)
	}
}

// checkClaims offers sessions, and updates the metrics of claims, so that a scrape needs no
// query. They keep their values while the store is unavailable.
func (s *Service) checkClaims(ctx context.Context) {
	claimed, waiting, oldest := 0, 0, time.Duration(0)
	var open []*Connection
	for c := range s.open.Range {
		open = append(open, c.(*Connection))
	}
	for batch := range slices.Chunk(open, claimBatch) {
		ids := make([]string, len(batch))
		for i, c := range batch {
			ids[i] = c.session.SessionID
		}
		reading, cancel := context.WithTimeout(ctx, storeTimeout)
		claims, err := s.store.Claims(reading, ids)
		cancel()
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
