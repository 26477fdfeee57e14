package redisstore

import (
	"errors"
	"testing"
	"time"

	"telapi/internal/calls"
)

// A failover loses an entry that replicas did not have, so that it was not acknowledged. A runtime
// that has received it is notified; the browser keeps its position and gets every message.
func TestLossOfEarlyEntry(t *testing.T) {
	t.Parallel()
	master, _ := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	replicated := func(o *calls.Options) { o.MinReplicas, o.Lease = 1, 5*time.Second }
	early := func(s *channelFixture, c *calls.Channel) (position string) {
		s.event("early")
		_, position = s.receive(c, "early")
		return position
	}
	for name, lose := range map[string]func(s *channelFixture, c *calls.Channel, restore func()) (later *calls.Channel){
		"found by the renewal of the claim": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			early(s, c)
			restore()
			if err := s.receiveError(c); !errors.Is(err, calls.ErrLost) {
				s.Errorf("the runtime got %v, want ErrLost", err)
			}
			return s.attachRuntime("r", replicated)
		},
		"found when the claim is resumed": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			position := early(s, c)
			restore()
			later, err := s.runtime("r", replicated).Resume(s.Context(), calls.Claim{Name: "r", Token: "later"}, s.id, position, "")
			must(s, err)
			if !later.Lost {
				s.Error("the runtime was not notified")
			}
			return later
		},
		"of a claim": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			later, err := s.runtime("r", replicated).Resume(s.Context(), calls.Claim{Name: "r", Token: "later"}, s.id, "", "")
			must(s, err)
			restore()
			s.setField("claimRequestedAt", "1") // the clocks of servers may differ by more than the test takes
			if err := later.CheckLoss(s.Context()); !errors.Is(err, calls.ErrLost) {
				s.Errorf("the runtime got %v, want ErrLost", err)
			}
			return c
		},
		"of a message that was held back": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			held := s.hold("2")
			restore()
			if got := s.script("confirm", held, "1")[0]; got != "lost" {
				s.Errorf("confirmed: %s, want lost", got)
			}
			return c
		},
		"of a connection": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			s.attach("b")
			restore()
			s.detach("b")
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newChannelFixture(t, opts, nil)
			head := s.attach("a").Head
			c := s.attachRuntime("r", replicated)
			s.send(c, "1")
			later := lose(s, c, s.snapshot())
			if later != c && later.LostAt.IsZero() {
				t.Error("the time of the loss is unknown")
			}
			if got := s.attach("c", resume(head)); !got.Recovered || len(got.Missed) != 1 {
				t.Errorf("resumed: %v, with %d messages; want 1", got.Recovered, len(got.Missed))
			}
		})
	}
}
