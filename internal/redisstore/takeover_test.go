package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// renewals counts the requests to renew the ownership of a session.
type renewals struct {
	channel.Subscriber
	mu    sync.Mutex
	count int
}

func (r *renewals) Replaced(connectionID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if connectionID == "" {
		r.count++
	}
}

func (r *renewals) Gap()                                       {}
func (r *renewals) Messages(channel.Cursor, []channel.Message) {}

func (r *renewals) requested() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// expireClaim makes the store's clock reach the end of the claim.
func (s *channelFixture) expireClaim() {
	s.Helper()
	s.setField("claimUntil", "1")
}

func (s *channelFixture) setField(name, value string) {
	s.Helper()
	s.do("HSET", kv.MetaKey(s.id), name, value)
}

// takeover releases a claim, and lets the next one expire. The owner of the session is notified at
// once, or with the next frame, and then has to offer the session.
func takeover(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.store.Subscribe(ctx) })
	defer running.Wait()
	defer cancel()
	requests := &renewals{}
	unsubscribe, err := s.channels.Subscribe(t.Context(), s.id, requests)
	must(t, err)
	defer unsubscribe()
	s.attach("a", func(a *channel.AttachRequest) {
		a.Offer = []byte(`{"sessionId":"` + s.id + `","identity":{"name":"Ann"}}`)
	})
	r := s.runtime("r")
	c, err := r.Attach(t.Context(), s.id)
	if err != nil || c.Offer == nil || c.Offer.Identity.Name != "Ann" {
		t.Fatalf("attach: %+v, %v; want the offer with its identity", c, err)
	}
	s.frame("a", "1")
	if s.renew("a", false).Offer {
		t.Error("a claimed session is offered")
	}

	must(t, c.Close(t.Context()))
	testkit.Until(t, "the release reaches the connection", func() bool { return requests.requested() == 1 })
	if result := s.renew("a", false); !result.Offer || result.Expired {
		t.Errorf("after a release: %+v, want an offer and no expired claim", result)
	}
	s.frame("a", "2") // the session is offered already
	if _, err = r.Attach(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	s.expireClaim()
	s.frame("a", "3")
	testkit.Until(t, "the frame after the expired claim reaches the connection", func() bool { return requests.requested() == 2 })
	claims, err := s.channels.Claims(t.Context(), []string{s.id, "unknown"})
	if err != nil || claims[1] != nil || claims[0].Claimed || claims[0].Offered || claims[0].Waiting <= 0 {
		t.Errorf("claims: %+v, %v; want a session that waits and was not offered, and an unknown one", claims[0], err)
	}
	if result := s.renew("a", false); !result.Offer || !result.Expired {
		t.Errorf("after the claim has expired: %+v, want an offer and an expired claim", result)
	}
	if result := s.renew("a", true); !result.Offer || result.Expired {
		t.Errorf("second offer: %+v, want an offer and no expired claim", result)
	}
	if claims, err = s.channels.Claims(t.Context(), []string{s.id}); err != nil || !claims[0].Offered {
		t.Errorf("claims: %+v, %v; want an offered session", claims[0], err)
	}
}

// callbackOffers delivers callbacks to a session whose browser is away. Only the
// service that accepts them can offer the session.
func callbackOffers(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	for i, tt := range []struct {
		offer   string
		expired bool
	}{{`{"sessionId":"s"}`, false}, {"", true}, {`{"sessionId":"s"}`, true}, {`{"sessionId":"s"}`, true}} {
		d.setField("offer", tt.offer)
		item, want := d.await(calls.AwaitOptions{}), ""
		if tt.expired {
			d.expireClaim()
			want = tt.offer
		}
		callback := d.delivery(item, fmt.Sprint("body ", i))
		for range 2 { // the reply may be lost
			if result, err := d.callbacks.Deliver(t.Context(), callback); err != nil || string(result.Offer) != want {
				t.Errorf("callback %d: offer %q, %v; want %q", i, result.Offer, err, want)
			}
		}
	}
}

// drain receives and commits everything up to the end of a channel.
func (s *channelFixture) drain(c *calls.Channel) {
	s.Helper()
	_, position := s.receive(c, "done")
	must(s, c.Commit(s.Context(), position))
	if _, err := c.Receive(s.Context()); !errors.Is(err, calls.ErrEnded) {
		s.Errorf("receive after the last commit: %v, want ErrEnded", err)
	}
}

func listedChannels(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")
	find := func() (found []ChannelInfo) {
		t.Helper()
		for c, err := range s.store.List(t.Context()) {
			must(t, err)
			if strings.HasSuffix(c.ID, s.id) {
				found = append(found, c)
			}
		}
		return found
	}
	list := find()
	if len(list) != 1 {
		t.Fatalf("listed %+v, want one channel", list)
	}
	c := list[0]
	if c.ID != s.id || c.State != "open" || c.Claim != ClaimNone || !c.Browser || !c.Waiting() || c.TeamID != "team" || c.BacklogEntries != 2 || c.BacklogBytes == 0 ||
		time.Since(c.LastActivity) > testkit.Timeout || c.UnclaimedSince != c.OpenedAt {
		t.Errorf("listed %+v, want an unclaimed channel with a browser and two entries", c)
	}
	claimed, err := s.runtime("r").Attach(t.Context(), s.id)
	must(t, err)
	if c := find()[0]; c.Claim != ClaimHeld || c.Runtime != "r" || c.Waiting() || !c.UnclaimedSince.IsZero() {
		t.Errorf("listed %+v, want a channel that r has claimed", c)
	}
	s.expireClaim()
	if c := find()[0]; c.Claim != ClaimExpired || c.Runtime != "r" || !c.Waiting() {
		t.Errorf("listed %+v, want an expired claim of r", c)
	}
	must(t, claimed.End(t.Context(), "done"))
	if c := find()[0]; c.State != "ended" || c.BacklogEntries != 3 || c.Waiting() {
		t.Errorf("listed %+v, want an ended channel with three entries", c)
	}
	s.drain(claimed)
	if list := find(); len(list) != 0 {
		t.Errorf("listed %+v after the last commit, want nothing", list)
	}
}
