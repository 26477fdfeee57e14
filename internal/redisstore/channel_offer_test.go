package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testcalls"
	"telapi/test/testkit"
)

func (s *channelFixture) offer() {
	s.Helper()
	err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Identity: &wire.Identifier{Name: "Ann"}, Metadata: jsontext.Value(`{"a":[1]}`)})
	must(s, err)
}

// isOwnOffer reports whether an offer is for the session of this test.
func (s *channelFixture) isOwnOffer(o wire.Offer) bool { return o.SessionID == s.id }

func claims(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	if !s.attach("a").Offer || s.attach("a").Offer {
		t.Error("the session must be offered by the first attach only")
	}
	s.offer()
	s.offer() // a duplicate offer
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	claimed := make(chan *calls.Channel, 2)
	var wg sync.WaitGroup
	for _, name := range []string{"r1", "r2"} {
		r := s.runtime(name)
		wg.Go(func() {
			for {
				c, err := testcalls.Accept(ctx, r, name, s.isOwnOffer)
				if err != nil {
					return
				}
				claimed <- c
			}
		})
	}
	c := <-claimed
	if c.ID != s.id || c.TeamID != "team" || c.EndpointID != "endpoint" || c.Mode != "chat" || string(c.Profile) != `{"commandSources":["bot"]}` ||
		c.Offer.Identity.Name != "Ann" || string(c.Offer.Metadata) != `{"a":[1]}` {
		t.Errorf("claimed %+v, want the data of the session and its offer", c)
	}
	s.offer()
	testkit.Until(t, "all offers acknowledged", func() bool { return len(s.offers()) == 0 })
	cancel()
	wg.Wait()
	if len(claimed) > 0 {
		t.Error("the session was claimed twice, want once")
	}
	if s.renew("a", false).Offer {
		t.Error("renewing a claimed session offers it")
	}
	wantError(t, "attach by a third runtime", errorOf(s.runtime("r3").Attach(t.Context(), s.id)), calls.ErrClaimed)
}

func crashedRuntimes(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")

	first := s.runtime("first")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := wire.Offer{SessionID: uuid.NewString()}
	must(t, s.channels.Offer(t.Context(), other))
	if _, err := testcalls.Accept(ctx, first, "first", func(o wire.Offer) bool {
		if o.SessionID == other.SessionID {
			cancel()
		}
		return s.isOwnOffer(o)
	}); err == nil {
		t.Error("accepted a session that was not offered")
	}
	s.offer()
	first.Close() // crashes before it claims the session
	second := s.runtime("second")
	c, err := testcalls.Accept(t.Context(), second, "second", s.isOwnOffer)
	must(t, err)
	_, position := s.receive(c, "1")
	must(t, c.Commit(t.Context(), position))
	s.frame("a", "2")
	s.receive(c, "2") // not committed
	second.Close()    // crashes after claiming

	if s.renew("a", false).Offer {
		t.Error("renewing a session offers it before the claim of its runtime has expired")
	}
	s.expireClaim()
	if !s.renew("a", false).Offer {
		t.Error("renewing a session whose runtime has crashed does not offer it")
	}
	if s.renew("a", false).Offer {
		t.Error("renewing a session with a pending offer offers it again")
	}
	if !s.renew("a", true).Offer {
		t.Error("renewing with retry does not offer the session")
	}
	s.offer()
	s.frame("a", "3")
	third, err := testcalls.Accept(t.Context(), s.runtime("third"), "third", s.isOwnOffer)
	must(t, err)
	s.expectReceived(third, "2 3")
}

// A runtime leaves a session that it does not want to others, and invalid offers hold up
// no one.
func unwantedSession(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	must(t, s.channels.Offer(t.Context(), wire.Offer{SessionID: "}"}))
	s.offer()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if c, err := testcalls.Accept(ctx, s.runtime("selective"), "selective", func(o wire.Offer) bool {
		if s.isOwnOffer(o) {
			cancel()
		}
		return o.TeamID == "demo"
	}); err == nil {
		t.Errorf("accepted %s of a team that is not wanted", c.ID)
	}
	if c, err := testcalls.Accept(t.Context(), s.runtime("r"), "r", func(o wire.Offer) bool { return o.SessionID == "}" || s.isOwnOffer(o) }); err != nil || c.ID != s.id {
		t.Errorf("accept by another runtime: %+v, %v, want %s", c, err, s.id)
	}
}

// offers returns the IDs of the session's offers on the stream.
func (s *channelFixture) offers() (ids []string) {
	s.Helper()
	for _, e := range s.stream(kv.OffersStream) {
		if strings.Contains(e.FieldValues["offer"], s.id) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// oneOffer offers a session again before and after it is accepted. The session never has
// two offers.
func oneOffer(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	current := ""
	check := func(step string, again bool) {
		t.Helper()
		s.offer()
		s.offer()
		ids := s.offers()
		if len(ids) != 1 || (ids[0] != current) != again {
			t.Fatalf("%s: offers %v, want one; the offer before was %q, want another: %t", step, ids, current, again)
		}
		current = ids[0]
	}
	check("first offer", true)
	check("offered again", false)
	c, err := testcalls.Accept(t.Context(), s.runtime("r"), "r", s.isOwnOffer)
	if err != nil || c.ID != s.id {
		t.Fatalf("accept: %+v, %v, want %s", c, err, s.id)
	}
	testkit.Until(t, "the offer is removed", func() bool { return len(s.offers()) == 0 })
	check("accepted", true)
}

// addExpired adds offers that expired long ago.
func (s *channelFixture) addExpired(n int) {
	s.Helper()
	for i := range n {
		s.do("XADD", kv.OffersStream, "*", "offer", fmt.Sprintf(`{"sessionId":"%s:%d","expiresAt":1}`, s.id, i), "expiresAt", "1")
	}
}

func (s *channelFixture) offerUntil(expiresAt time.Time) {
	s.Helper()
	must(s, s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, ExpiresAt: expiresAt.UnixMilli()}))
}

func expiredOffers(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.addExpired(1500)
	s.offerUntil(time.Now().Add(time.Hour))
	c, err := testcalls.Accept(t.Context(), s.runtime("r"), "r", s.isOwnOffer)
	if err != nil || c.Offer.ExpiresAt < time.Now().UnixMilli() {
		t.Fatalf("accept: %+v, %v, want an offer that has not expired", c, err)
	}
	testkit.Until(t, "all offers are removed", func() bool { return len(s.offers()) == 0 })
}

func TestOfferDropsExpiredOffers(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.addExpired(10)
	s.offerUntil(time.Now().Add(time.Hour))
	if ids := s.offers(); len(ids) != 1 {
		t.Errorf("%d offers, want the new one", len(ids))
	}
}

func TestOldOffersAreTrimmed(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	for i := range 1000 {
		r.MustDo("XADD", kv.OffersStream, fmt.Sprintf("%d-0", i+1), "offer", "{}")
	}
	s.offer()
	reply := r.MustDo("XLEN", kv.OffersStream)
	if n, _ := reply.AsInt64(); n > 100 {
		t.Errorf("%d offers left, want at most 100", n) // whole nodes of the stream are trimmed
	}
}

func TestStoreClockDecidesWhetherOfferHasExpired(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	s.attach("a")
	r.MustDo("XADD", kv.OffersStream, "*", "offer", fmt.Sprintf(`{"sessionId":%q,"expiresAt":1}`, s.id), "expiresAt", "99999999999999")
	if _, err := testcalls.Accept(t.Context(), s.runtime("r"), "r", s.isOwnOffer); err != nil {
		t.Error(err)
	}
}
