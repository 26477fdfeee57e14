package redisstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// offers returns the IDs of the session's offers on the stream.
func (s *channelFixture) offers() (ids []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		list, err := client.Do(ctx, client.B().Xrange().Key(kv.OffersStream).Start("-").End("+").Build()).AsXRange()
		for _, e := range list {
			if strings.Contains(e.FieldValues["offer"], s.id) {
				ids = append(ids, e.ID)
			}
		}
		return err
	})
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
	c, err := s.runtime("r").Accept(t.Context(), s.isOwnOffer)
	if err != nil || c.ID != s.id {
		t.Fatalf("accept: %+v, %v, want %s", c, err, s.id)
	}
	testkit.Until(t, "the offer is removed", func() bool { return len(s.offers()) == 0 })
	check("accepted", true)
}

// addExpired adds offers that expired long ago.
func (s *channelFixture) addExpired(n int) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		commands := make(rueidis.Commands, n)
		for i := range commands {
			commands[i] = client.B().Xadd().Key(kv.OffersStream).Id("*").FieldValue().
				FieldValue("offer", fmt.Sprintf(`{"sessionId":"%s:%d","expiresAt":1}`, s.id, i)).FieldValue("expiresAt", "1").Build()
		}
		for _, reply := range client.DoMulti(ctx, commands...) {
			if err := reply.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *channelFixture) offerUntil(expiresAt time.Time) {
	s.Helper()
	if err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, ExpiresAt: expiresAt.UnixMilli()}); err != nil {
		s.Fatal(err)
	}
}

func expiredOffers(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.addExpired(1500)
	s.offerUntil(time.Now().Add(time.Hour))
	c, err := s.runtime("r").Accept(t.Context(), s.isOwnOffer)
	if err != nil || c.Offer.ExpiresAt < time.Now().UnixMilli() {
		t.Fatalf("accept: %+v, %v, want an offer that has not expired", c, err)
	}
	testkit.Until(t, "all offers are removed", func() bool { return len(s.offers()) == 0 })
}

func TestExpiredOffersCostFewCommands(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	s.attach("a")
	s.addExpired(10_000)
	s.offerUntil(time.Now().Add(time.Hour))
	runtime := s.runtime("r")
	r.MustDo("CONFIG", "RESETSTAT")
	if _, err := runtime.Accept(t.Context(), s.isOwnOffer); err != nil {
		t.Fatal(err)
	}
	reply := r.MustDo("INFO", "commandstats")
	info, _ := reply.ToString()
	for _, command := range []string{"xread", "xdel", "evalsha", "eval"} {
		calls := 0
		if match := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(info); match != nil {
			calls, _ = strconv.Atoi(match[1])
		}
		if calls > 20 {
			t.Errorf("%d calls of %s, want at most 20", calls, command)
		}
	}
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

// A runtime whose clock is ahead accepts a session that has not expired.
func TestStoreClockDecidesWhetherOfferHasExpired(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	s.attach("a")
	r.MustDo("XADD", kv.OffersStream, "*", "offer", fmt.Sprintf(`{"sessionId":%q,"expiresAt":1}`, s.id), "expiresAt", "99999999999999")
	if _, err := s.runtime("r").Accept(t.Context(), s.isOwnOffer); err != nil {
		t.Error(err)
	}
}
