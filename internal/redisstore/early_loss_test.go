package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// A failover loses an entry that replicas did not have, so that it was not acknowledged. A runtime
// that has received it is notified; the browser keeps its position and gets every message.
func TestLossOfEarlyEntry(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	replicated := func(o *calls.Options) { o.MinReplicas, o.Lease = 1, 5*time.Second }
	early := func(s *channelFixture, c *calls.Channel) (position string) {
		replica.Freeze()
		defer replica.Thaw()
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		frame := channel.Frame{MessageID: "early", Entry: s.entry(wire.KindFrame, "early")}
		if _, _, err := s.channels.Append(ctx, s.owner("a"), []channel.Frame{frame}); !fault.Is(err, fault.ServiceUnavailable) {
			s.Errorf("frame without the replica: %v", err)
		}
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

// A failover loses a frame although a replica had it. The runtime finds that, and the connection
// then reports that it was acknowledged.
func TestLossOfAcknowledgedFrameDespiteReplicas(t *testing.T) {
	t.Parallel()
	master, _ := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	s := newChannelFixture(t, opts, nil)
	head := s.attach("a").Head
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.store.Subscribe(ctx) })
	defer running.Wait()
	defer cancel()
	connection := &renewals{}
	stop, err := s.channels.Subscribe(ctx, s.id, connection)
	must(t, err)
	defer stop()
	c := s.attachRuntime("r", func(o *calls.Options) { o.MinReplicas, o.Lease = 1, 5*time.Second })
	restore := s.snapshot()
	s.frame("a", "acknowledged")
	s.receive(c, "acknowledged")
	restore()
	if err := s.receiveError(c); !errors.Is(err, calls.ErrLost) {
		t.Errorf("the runtime got %v, want ErrLost", err)
	}
	testkit.Until(t, "the connection is asked to check", func() bool { return connection.requested() > 0 })
	s.expectRenewal("a", channel.Lost)
	if got := s.attach("b", resume(head)); got.Recovered {
		t.Error("a cursor from before the loss was resumed")
	}
}
