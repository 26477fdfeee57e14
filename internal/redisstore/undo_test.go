package redisstore

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// A session is claimed, but all replies are lost until the attempt times out. It is offered
// again at once, rather than when the lease of the claim expires.
func TestAcceptWithLostRepliesIsUndone(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a", func(a *channel.AttachRequest) { a.Offer = []byte(`{"sessionId":"` + s.id + `"}`) })
	s.offer()
	silent := &atomic.Bool{} // replies to claim.lua are lost
	silent.Store(true)
	lossy := hookedConn{received: func(data []byte) bool { return !silent.Load() || !bytes.Contains(data, []byte("\r\nclaimed\r\n")) }}
	r := s.runtime("r", lossy.dial, func(o *calls.Options) { o.Lease = time.Hour })
	attempts, got := 0, make(chan *calls.Channel, 1)
	r.Demand(&calls.Demand{
		Want: func(o *wire.Offer) bool { return o.SessionID == s.id },
		Claim: func(context.Context, string) (calls.Claim, error) {
			attempts++
			silent.Store(attempts == 1)
			return calls.Claim{Name: "r/" + string(rune('0'+attempts)), Token: "connection/" + string(rune('0'+attempts))}, nil
		},
		Got: func(c *calls.Channel) { got <- c },
	})
	select {
	case c := <-got:
		if c == nil || c.ID != s.id || attempts != 2 {
			t.Errorf("claimed %+v after %d attempts, want %s after 2", c, attempts, s.id)
		}
	case <-time.After(testkit.Timeout):
		t.Fatalf("the session is not offered again after %d attempts", attempts)
	}
}

// forEachRelease runs a test for each way in which a claim that would last for an hour is released.
func forEachRelease(t *testing.T, opts Options, test func(s *channelFixture, r *calls.Runtime, c *calls.Channel, release func() error)) {
	for name, release := range map[string]func(*calls.Runtime, *calls.Channel) error{
		"sweep":   func(r *calls.Runtime, _ *calls.Channel) error { return r.Sweep(t.Context(), "connection") },
		"release": func(_ *calls.Runtime, c *calls.Channel) error { return c.Close(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, nil)
			s.attach("a", func(a *channel.AttachRequest) { a.Offer = []byte(`{"sessionId":"` + s.id + `"}`) })
			r := s.runtime("r", func(o *calls.Options) { o.Lease = time.Hour })
			claimed, err := r.AttachAs(t.Context(), calls.Claim{Name: "r/1", Token: "connection/1"}, s.id)
			must(t, err)
			must(t, r.RecordClaims(t.Context(), "connection", s.id))
			test(s, r, claimed, func() error { return release(r, claimed) })
		})
	}
}

// lostRelease loses the release of an ended session in a failover, after its offer was removed.
// The session is offered again, although no browser is connected that would do so.
func lostRelease(t *testing.T, opts Options) {
	forEachRelease(t, opts, func(s *channelFixture, r *calls.Runtime, c *calls.Channel, release func() error) {
		must(s, c.End(s.Context(), "done"))
		restore := s.snapshot()
		must(s, release())
		restore()
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Xdel().Key(kv.OffersStream).Id(s.offers()...).Build()).Error()
		})
		r.Close() // what it would do later
		if len(s.offers()) != 1 {
			s.Error("the session is not offered")
		}
		must(s, errorOf(s.runtime("next").Attach(s.Context(), s.id)))
	})
}

// lossThenRelease loses data of a channel, and then the runtime that had it: its connection
// is lost, or it releases the channel. The session is offered without waiting for the lease
// of the claim.
func lossThenRelease(t *testing.T, opts Options) {
	forEachRelease(t, opts, func(s *channelFixture, r *calls.Runtime, _ *calls.Channel, release func() error) {
		restore := s.snapshot()
		s.frame("a", "1")
		restore()
		s.renew("a", false) // finds the loss
		must(s, release())
		if c, err := s.runtime("next").Attach(s.Context(), s.id); err != nil || c.LostAt.IsZero() {
			s.Errorf("the next runtime got %+v, %v; want the channel and the time of the loss", c, err)
		}
		if len(s.offers()) != 1 {
			s.Error("the session is not offered")
		}
		must(s, r.Sweep(s.Context(), "connection")) // has no effect
		if _, err := s.runtime("other").Attach(s.Context(), s.id); !errors.Is(err, calls.ErrClaimed) {
			s.Errorf("another runtime: %v, want ErrClaimed", err)
		}
	})
}

// recovery claims a channel again that the browser has opened again after the store was
// wiped, twice. Every loss has another time.
func recovery(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	r := s.runtime("r")
	claim := calls.Claim{Name: "r/1", Token: "connection/1"}
	c, err := r.AttachAs(t.Context(), claim, s.id)
	must(t, err)
	var times []time.Time
	for _, token := range []string{"connection/2", "connection/3"} {
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Del().Key(kv.ChannelKeys(s.id)...).Build()).Error()
		})
		s.attach("a")
		claim.Token = token
		c, err = r.Recover(t.Context(), claim, c)
		if err != nil || c.LostAt.IsZero() || time.Since(c.LostAt).Abs() > time.Hour {
			t.Fatalf("recovered %+v, %v; want the time of the loss", c, err)
		}
		times = append(times, c.LostAt)
		later := time.Now().Add(5 * time.Millisecond)
		testkit.Until(t, "the clock advances", func() bool { return time.Now().After(later) })
	}
	if times[0].Equal(times[1]) {
		t.Errorf("both losses have the time %s", times[0])
	}

	// A loss is found under this claim. Another connection of the runtime claims the channel first.
	s.setField("claimToken", "")
	s.setField("lostToken", claim.Token)
	later := calls.Claim{Name: claim.Name, Token: "later/1"}
	newer, err := r.Resume(t.Context(), later, s.id, "", "")
	must(t, err)
	claim.Token = "connection/4"
	wantError(t, "recovery after a later claim", errorOf(r.Recover(t.Context(), claim, c)), calls.ErrClaimLost)
	s.send(newer, "kept")
}

// resumeAfterEnd ends a channel after the store has lost the newest entry that the runtime
// has. Another entry has its number now.
func resumeAfterEnd(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	r := s.runtime("r")
	claim := calls.Claim{Name: "r/1", Token: "connection/1"}
	c, err := r.AttachAs(t.Context(), claim, s.id)
	must(t, err)
	restore := s.snapshot()
	s.event("lost")
	_, received := s.receive(c, "lost")
	restore()
	s.detach("a")
	must(t, c.End(t.Context(), "done"))
	claim.Token = "connection/2"
	resumed, err := r.Resume(t.Context(), claim, s.id, received, "")
	must(t, err)
	if !resumed.Lost || resumed.LostAt.IsZero() {
		t.Errorf("lost: %v, at %v; want a loss", resumed.Lost, resumed.LostAt)
	}
	s.expectReceived(resumed, "connected disconnected done")
}
