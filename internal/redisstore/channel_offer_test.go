package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func (s *channelFixture) offer() {
	s.Helper()
	err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Identity: &wire.Identifier{Name: "Ann"}, Metadata: jsontext.Value(`{"a":[1]}`)})
	if err != nil {
		s.Fatal(err)
	}
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
				c, err := r.Accept(ctx, s.isOwnOffer)
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
	testkit.Until(t, "all offers acknowledged", func() bool {
		gone := true
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			list, err := client.Do(ctx, client.B().Xrange().Key(kv.OffersStream).Start("-").End("+").Build()).AsXRange()
			gone = !slices.ContainsFunc(list, func(e rueidis.XRangeEntry) bool { return strings.Contains(e.FieldValues["offer"], s.id) })
			return err
		})
		return gone
	})
	cancel()
	wg.Wait()
	if len(claimed) > 0 {
		t.Error("the session was claimed twice, want once")
	}
	if s.renew("a", false).Offer {
		t.Error("renewing a claimed session offers it")
	}
	if _, err := s.runtime("r3").Attach(t.Context(), s.id); !errors.Is(err, calls.ErrClaimed) {
		t.Errorf("attach by a third runtime: %v, want ErrClaimed", err)
	}
}

func crashedRuntimes(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	shortLease := func(o *calls.Options) { o.Lease = time.Second }
	s.attach("a")
	s.frame("a", "1")

	first := s.runtime("first", shortLease)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := wire.Offer{SessionID: uuid.NewString()}
	if err := s.channels.Offer(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Accept(ctx, func(o wire.Offer) bool {
		if o.SessionID == other.SessionID {
			cancel()
		}
		return s.isOwnOffer(o)
	}); err == nil {
		t.Error("accepted a session that was not offered")
	}
	s.offer()
	first.Close() // crashes before it claims the session
	second := s.runtime("second", shortLease)
	c, err := second.Accept(t.Context(), s.isOwnOffer)
	if err != nil {
		t.Fatal(err)
	}
	_, position := s.receive(c, "1")
	if err := c.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	s.frame("a", "2")
	s.receive(c, "2") // not committed
	second.Close()    // crashes after claiming

	retry := false
	testkit.Until(t, "a new offer", func() bool {
		result, err := s.channels.Renew(t.Context(), s.owner("a"), time.Minute, retry)
		if retry = err != nil; retry {
			t.Logf("renew: %v", err)
		}
		return result.Offer
	})
	if s.renew("a", false).Offer {
		t.Error("renewing a session with a pending offer offers it again")
	}
	if !s.renew("a", true).Offer {
		t.Error("renewing with retry does not offer the session")
	}
	s.offer()
	s.frame("a", "3")
	third, err := s.runtime("third").Accept(t.Context(), s.isOwnOffer)
	if err != nil {
		t.Fatal(err)
	}
	if events, _ := s.receive(third, "3"); strings.Join(events, " ") != "2 3" {
		t.Errorf("the third runtime received %v, want [2 3]", events)
	}
}

// A runtime leaves a session that it does not want to others, and invalid offers hold up
// no one.
func unwantedSession(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	if err := s.channels.Offer(t.Context(), wire.Offer{SessionID: "}"}); err != nil {
		t.Fatal(err)
	}
	s.offer()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if c, err := s.runtime("selective").Accept(ctx, func(o wire.Offer) bool {
		if s.isOwnOffer(o) {
			cancel()
		}
		return o.TeamID == "demo"
	}); err == nil {
		t.Errorf("accepted %s of a team that is not wanted", c.ID)
	}
	if c, err := s.runtime("r").Accept(t.Context(), func(o wire.Offer) bool { return o.SessionID == "}" || s.isOwnOffer(o) }); err != nil || c.ID != s.id {
		t.Errorf("accept by another runtime: %+v, %v, want %s", c, err, s.id)
	}
}
