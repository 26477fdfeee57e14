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
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testcalls"
	"telapi/test/testkit"
)

func (s *channelFixture) offer() {
	s.Helper()
	err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Identity: &wire.Identifier{Name: "Ann"}, Metadata: jsontext.Value(`{"a":[1]}`)})
	testkit.Must(s, err)
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
	testkit.WantError(t, "attach by a third runtime", testkit.ErrorOf(s.runtime("r3").Attach(t.Context(), calls.Claim{}, s.id)), calls.ErrClaimed)
}

func crashedRuntimes(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")

	first := s.runtime("first")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := wire.Offer{SessionID: uuid.NewString()}
	testkit.Must(t, s.channels.Offer(t.Context(), other))
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
	testkit.Must(t, err)
	_, position := s.receive(c, "1")
	testkit.Must(t, c.Commit(t.Context(), position))
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
		t.Error("renewing with reoffer does not offer the session")
	}
	s.offer()
	s.frame("a", "3")
	third, err := testcalls.Accept(t.Context(), s.runtime("third"), "third", s.isOwnOffer)
	testkit.Must(t, err)
	s.expectReceived(third, "2 3")
}

// A runtime leaves a session that it does not want to others, and invalid offers hold up
// no one.
func unwantedSession(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	testkit.Must(t, s.channels.Offer(t.Context(), wire.Offer{SessionID: "}"}))
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
	testkit.Must(s, s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, ExpiresAt: expiresAt.UnixMilli()}))
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
	newChannelFixture(t, s.store.opts, nil).offerUntil(time.Now().Add(time.Hour))
	testkit.Equal(t, "offers after that of another session", len(s.stream(kv.OffersStream)), 2)
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
	testkit.Must(t, testkit.ErrorOf(testcalls.Accept(t.Context(), s.runtime("r"), "r", s.isOwnOffer)))
}

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
	defer testkit.Start(t, func(ctx context.Context) { s.store.Subscribe(ctx) })()
	requests := &renewals{}
	unsubscribe, err := s.channels.Subscribe(t.Context(), s.id, requests)
	testkit.Must(t, err)
	defer unsubscribe()
	s.attach("a", func(a *channel.AttachRequest) {
		a.Offer = []byte(`{"sessionId":"` + s.id + `","identity":{"name":"Ann"}}`)
	})
	r := s.runtime("r")
	c, err := r.Attach(t.Context(), calls.Claim{}, s.id)
	if err != nil || c.Offer == nil || c.Offer.Identity.Name != "Ann" {
		t.Fatalf("attach: %+v, %v; want the offer with its identity", c, err)
	}
	s.frame("a", "1")
	if s.renew("a", false).Offer {
		t.Error("a claimed session is offered")
	}

	testkit.Must(t, c.Close(t.Context()))
	testkit.Until(t, "the release reaches the connection", func() bool { return requests.requested() == 1 })
	if result := s.renew("a", false); !result.Offer || result.Expired {
		t.Errorf("after a release: %+v, want an offer and no expired claim", result)
	}
	s.frame("a", "2") // the session is offered already
	if _, err = r.Attach(t.Context(), calls.Claim{}, s.id); err != nil {
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
	testkit.Must(s, c.Commit(s.Context(), position))
	testkit.WantError(s, "receive after the last commit", testkit.ErrorOf(c.Receive(s.Context())), calls.ErrEnded)
}

func listedChannels(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")
	find := func() (found []ChannelInfo) {
		t.Helper()
		for c, err := range s.store.List(t.Context()) {
			testkit.Must(t, err)
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
	claimed, err := s.runtime("r").Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	if c := find()[0]; c.Claim != ClaimHeld || c.Runtime != "r" || c.Waiting() || !c.UnclaimedSince.IsZero() {
		t.Errorf("listed %+v, want a channel that r has claimed", c)
	}
	s.expireClaim()
	if c := find()[0]; c.Claim != ClaimExpired || c.Runtime != "r" || !c.Waiting() {
		t.Errorf("listed %+v, want an expired claim of r", c)
	}
	testkit.Must(t, claimed.End(t.Context(), "done"))
	if c := find()[0]; c.State != "ended" || c.BacklogEntries != 3 || c.Waiting() {
		t.Errorf("listed %+v, want an ended channel with three entries", c)
	}
	s.drain(claimed)
	if list := find(); len(list) != 0 {
		t.Errorf("listed %+v after the last commit, want nothing", list)
	}
}
