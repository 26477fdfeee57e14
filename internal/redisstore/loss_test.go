package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// A failover loses an entry that replicas did not have, so that it was not acknowledged. A runtime
// that has received it is notified; the browser keeps its cursor and gets every message.
func TestLossOfEarlyEntry(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	replicated := func(o *calls.Options) { o.MinReplicas, o.Lease = 1, 5*time.Second }
	early := func(s *channelFixture, c *calls.Channel) (position string) {
		replica.Freeze()
		defer replica.Thaw()
		frame := channel.Frame{MessageID: "early", Entry: s.entry(wire.KindFrame, "early")}
		defer testkit.Start(s, func(ctx context.Context) { // as often as needed: an attempt that does not start in time adds nothing
			for ctx.Err() == nil {
				attempt, cancel := context.WithTimeout(s.Context(), time.Second)
				_, _, err := s.channels.Append(attempt, s.owner("a"), []channel.Frame{frame})
				cancel()
				if !fault.Is(err, fault.ServiceUnavailable) {
					s.Errorf("frame without the replica: %v", err)
				}
			}
		})()
		_, position = s.receive(c, "early")
		return position
	}
	for name, lose := range map[string]func(s *channelFixture, c *calls.Channel, restore func()) (later *calls.Channel){
		"found by the renewal of the claim": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			early(s, c)
			restore()
			testkit.WantError(s, "the runtime", s.receiveError(c), calls.ErrLost)
			return s.attachRuntime("r", replicated)
		},
		"found when the claim is resumed": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			position := early(s, c)
			restore()
			later, err := s.runtime("r", replicated).Resume(s.Context(), calls.Claim{Name: "r", Token: "later"}, s.id, position, "")
			testkit.Must(s, err)
			if !later.Lost {
				s.Error("the runtime was not notified")
			}
			return later
		},
		"of a claim": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			later, err := s.runtime("r", replicated).Resume(s.Context(), calls.Claim{Name: "r", Token: "later"}, s.id, "", "")
			testkit.Must(s, err)
			restore()
			s.setField("claimRequestedAt", "1") // the clocks of servers may differ by more than the test takes
			testkit.WantError(s, "the runtime", later.CheckLoss(s.Context()), calls.ErrLost)
			return c
		},
		"of a message that was held back": func(s *channelFixture, c *calls.Channel, restore func()) *calls.Channel {
			held := s.hold("2")
			restore()
			testkit.Equal(s, "confirmed", s.script("confirm", held, "1")[0], "lost")
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

// After two failovers the store can have an older claim again. The later one reports the
// messages that are gone, also those of its predecessor, and is recovered.
func TestOlderClaimIsReplaced(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	d.setField("claimRequestedAt", "1")
	restore := d.snapshot()
	attach := func(age time.Duration) *calls.Channel { // requested so long ago that the clock of the store has passed that time
		c, err := d.runtime("r").Attach(t.Context(), calls.Claim{Name: "r", Token: fmt.Sprint(age), RequestedAt: time.Now().Add(-age)}, d.id)
		testkit.Must(t, err)
		return c
	}
	later := attach(2 * time.Minute)
	testkit.Must(t, later.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value("{}")}))
	last := attach(time.Minute)
	testkit.Must(t, later.CheckLoss(t.Context())) // last has the claim
	testkit.Must(t, last.Commit(t.Context(), ""))
	restore()
	testkit.WantError(t, "check", last.CheckLoss(t.Context()), calls.ErrLost)
	testkit.WantError(t, "cancel with the older claim", d.Cancel(t.Context(), "other"), calls.ErrLost)
	testkit.WantError(t, "recover the older claim", testkit.ErrorOf(d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "older"}, d.Channel)), calls.ErrClaimLost)
	again, err := d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "again"}, last)
	testkit.Must(t, err)
	testkit.Must(t, again.Commit(t.Context(), ""))
	again, err = d.runtime("r").Recover(t.Context(), calls.Claim{Name: "r", Token: "again"}, last) // the reply was lost
	testkit.Must(t, err)
	testkit.Must(t, again.Commit(t.Context(), ""))
}

// A claim was released, and then the clock of the store was set back.
func TestReleasedClaimIsFreeWhateverTheClock(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	for _, name := range []string{"released", "revoked", "later"} {
		c := s.attachRuntime(name)
		if name == "revoked" {
			s.script("revoke", s.claimToken())
		} else {
			testkit.Must(t, c.Close(t.Context()))
		}
		s.setField("claimUntil", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()))
	}
}

// The store's clock is set forward after another runtime has the claim. The former holder must not
// take its own claim for the later one.
func TestClockThatIsSetForwardMakesNoClaimOlder(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	start := time.Now()
	m.SetTime(start)
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: []string{m.Addr()}, Embedded: true}}, nil)
	s.attach("a")
	former := s.attachRuntime("former")
	m.SetTime(start.Add(2 * time.Second))
	s.setField("claimUntil", "0")
	later := s.attachRuntime("later")
	m.SetTime(start.Add(20 * time.Second))
	testkit.WantError(t, "commit under the former claim", former.Commit(t.Context(), "1-1"), calls.ErrClaimLost) // measures the clock
	testkit.Must(t, former.CheckLoss(t.Context()))
	testkit.NoError(t, "the later claim", later.Commit(t.Context(), ""))
}

// A connection of a runtime can end before it notices that the store has lost data. The
// runtime's next connection does not know of that data.
func TestLossUnderAbandonedClaimIsReported(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(d *callbackFixture){
		"work item": func(d *callbackFixture) { d.await(calls.AwaitOptions{}) },
		"message":   func(d *callbackFixture) { d.send(d.Channel, "lost") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
			s.attach("a")
			former := s.runtime("r")
			c, err := former.Attach(t.Context(), calls.Claim{}, s.id)
			testkit.Must(t, err)
			restore := s.snapshot()
			lose(&callbackFixture{channelFixture: s, Channel: c})
			restore()
			c.Abandon()
			next := s.attachRuntime("r")
			testkit.Must(t, next.Commit(t.Context(), ""))
			former.Close()
			testkit.WantError(t, "commit", next.Commit(t.Context(), ""), calls.ErrLost)
		})
	}
}

// A channel remembers a limited number of settled work items. A runtime that notices late that it
// has lost its claim must not take a forgotten one for lost.
func TestForgottenWorkItemOfFormerClaimIsNotReported(t *testing.T) {
	t.Parallel()
	for forgotten, want := range map[bool]error{true: nil, false: calls.ErrLost} {
		d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
		restore := d.snapshot()
		item := d.await(calls.AwaitOptions{})
		if forgotten {
			testkit.Must(t, d.Cancel(t.Context(), item.ID))
		} else {
			restore()
		}
		next := d.attachRuntime("r")
		d.do("HSET", kv.MetaKey(d.id), "queue", map[bool]string{true: "1026 1025 0", false: "1025 1024 0"}[forgotten]) // so many were settled since
		testkit.Must(t, testkit.ErrorOf(next.Await(t.Context(), calls.AwaitOptions{Scope: wire.ScopeChannel})))        // looks for fields that are not needed any more
		testkit.Must(t, d.CheckLoss(t.Context()))
		testkit.WantError(t, fmt.Sprintf("the next claim, forgotten: %t", forgotten), next.Commit(t.Context(), ""), want)
	}
}

// A session is claimed, but all replies are lost until the attempt times out. It is offered
// again at once, rather than when the lease of the claim expires.
func TestAcceptWithLostRepliesIsUndone(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a", func(a *channel.AttachRequest) { a.Offer = []byte(`{"sessionId":"` + s.id + `"}`) })
	s.offer()
	silent := &atomic.Bool{} // replies to the script claim are lost
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
			claimed, err := r.Attach(t.Context(), calls.Claim{Name: "r/1", Token: "connection/1"}, s.id)
			testkit.Must(t, err)
			testkit.Must(t, r.RecordClaims(t.Context(), "connection", s.id))
			test(s, r, claimed, func() error { return release(r, claimed) })
		})
	}
}

// lostRelease loses the release of an ended session in a failover, after its offer was removed.
// The session is offered again, although no browser is connected that would do so.
func lostRelease(t *testing.T, opts Options) {
	forEachRelease(t, opts, func(s *channelFixture, r *calls.Runtime, c *calls.Channel, release func() error) {
		testkit.Must(s, c.End(s.Context(), "done"))
		restore := s.snapshot()
		testkit.Must(s, release())
		restore()
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Xdel().Key(kv.OffersStream).Id(s.offers()...).Build()).Error()
		})
		r.Close() // what it would do later
		if len(s.offers()) != 1 {
			s.Error("the session is not offered")
		}
		testkit.Must(s, testkit.ErrorOf(s.runtime("next").Attach(s.Context(), calls.Claim{}, s.id)))
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
		s.renew("a", false)                                                                                           // finds the loss
		s.script("check_claim", "", "former", "", s.field(kv.MetaKey(s.id), "epoch"), "99999999999999-1", "", "", "") // finds another one
		testkit.Must(s, release())
		if c, err := s.runtime("next").Attach(s.Context(), calls.Claim{}, s.id); err != nil || c.LostAt.IsZero() {
			s.Errorf("the next runtime got %+v, %v; want the channel and the time of the loss", c, err)
		}
		if len(s.offers()) != 1 {
			s.Error("the session is not offered")
		}
		testkit.Must(s, r.Sweep(s.Context(), "connection")) // has no effect
		testkit.WantError(s, "another runtime", testkit.ErrorOf(s.runtime("other").Attach(s.Context(), calls.Claim{}, s.id)), calls.ErrClaimed)
	})
}

// releasedClaim renews a claim that was released, as an instance does that was taken for dead.
func releasedClaim(t *testing.T, opts Options) {
	forEachRelease(t, opts, func(s *channelFixture, _ *calls.Runtime, _ *calls.Channel, release func() error) {
		testkit.Must(s, release())
		renewed := s.script("claim", "r/1", "connection/1", "60000", "renew", "", "", "", "", s.field(kv.MetaKey(s.id), "epoch"), "")
		testkit.Equal(s, "renewal", renewed[0], "claim_lost")
	})
}

// recovery claims a channel again that the browser has opened again after the store was
// wiped, twice. Every loss has another time.
func recovery(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	r := s.runtime("r")
	claim := calls.Claim{Name: "r/1", Token: "connection/1"}
	c, err := r.Attach(t.Context(), claim, s.id)
	testkit.Must(t, err)
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
	testkit.Must(t, err)
	claim.Token = "connection/4"
	testkit.WantError(t, "recovery after a later claim", testkit.ErrorOf(r.Recover(t.Context(), claim, c)), calls.ErrClaimLost)
	s.send(newer, "kept")
}

// resumeAfterEnd ends a channel after the store has lost the newest entry that the runtime
// has. Another entry has its number now.
func resumeAfterEnd(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	r := s.runtime("r")
	claim := calls.Claim{Name: "r/1", Token: "connection/1"}
	c, err := r.Attach(t.Context(), claim, s.id)
	testkit.Must(t, err)
	restore := s.snapshot()
	s.event("lost")
	_, received := s.receive(c, "lost")
	restore()
	s.detach("a")
	testkit.Must(t, c.End(t.Context(), "done"))
	claim.Token = "connection/2"
	resumed, err := r.Resume(t.Context(), claim, s.id, received, "")
	testkit.Must(t, err)
	if !resumed.Lost || resumed.LostAt.IsZero() {
		t.Errorf("lost: %v, at %v; want a loss", resumed.Lost, resumed.LostAt)
	}
	s.expectReceived(resumed, "connected disconnected done")
}
