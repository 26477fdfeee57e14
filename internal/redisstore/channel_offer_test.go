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
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/test/poll"
)

func (s *channelFixture) offer() {
	s.Helper()
	err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Identity: &wire.Identifier{Name: "Ann"}, Metadata: jsontext.Value(`{"a":[1]}`)})
	if err != nil {
		s.Fatal(err)
	}
}

// mine keeps tests from taking each other's sessions.
func (s *channelFixture) mine(o wire.Offer) bool { return o.SessionID == s.id }

func claims(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	if !s.attach("a").Offer || s.attach("a").Offer {
		t.Error("not offered once")
	}
	s.offer()
	s.offer() // twice is harmless
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	won := make(chan *callruntime.Channel, 2)
	var wg sync.WaitGroup
	for _, name := range []string{"r1", "r2"} {
		r := s.runtime(name)
		wg.Go(func() {
			for {
				c, err := r.Accept(ctx, s.mine)
				if err != nil {
					return
				}
				won <- c
			}
		})
	}
	c := <-won
	if c.ID != s.id || c.TeamID != "team" || c.EndpointID != "endpoint" || c.Mode != "chat" || string(c.Profile) != `{"commandSources":["bot"]}` ||
		c.Offer.Identity.Name != "Ann" || string(c.Offer.Metadata) != `{"a":[1]}` {
		t.Errorf("claimed %+v", c)
	}
	s.offer()
	poll.Until(t, "all offers settled", func() bool {
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
	if len(won) > 0 {
		t.Error("claimed twice")
	}
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, false); offer || err != nil {
		t.Errorf("offered although claimed: %v", err)
	}
	if _, err := s.runtime("r3").Attach(t.Context(), s.id); !errors.Is(err, callruntime.ErrClaimed) {
		t.Errorf("a third runtime: %v", err)
	}
}

func succession(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	short := func(o *callruntime.Options) { o.Lease = time.Second }
	s.attach("a")
	s.frame("a", "1")

	first := s.runtime("first", short)
	if _, err := first.Accept(expired(t), s.mine); err == nil {
		t.Error("accepted what was not offered")
	}
	s.offer()
	// It dies between reading an offer and claiming the session.
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for {
			streams, err := client.Do(ctx, client.B().Xreadgroup().Group(s.id, "first").Count(1).Streams().Key(kv.OffersStream).Id(">").Build()).AsXRead()
			if rueidis.IsRedisNil(err) {
				return nil // by a read that was in progress when Accept was cancelled
			}
			if err != nil {
				return err
			}
			if strings.Contains(streams[kv.OffersStream][0].FieldValues["offer"], s.id) {
				return nil
			}
		}
	})
	second := s.runtime("second", short)
	c, err := second.Accept(t.Context(), s.mine)
	if err != nil {
		t.Fatal(err)
	}
	_, position := s.receive(c, "1")
	if err := c.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	s.frame("a", "2")
	s.receive(c, "2") // and is not committed
	second.Close()    // it dies after claiming

	unsure := false
	poll.Until(t, "a new offer", func() bool {
		_, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, unsure)
		if unsure = err != nil; unsure {
			t.Logf("renew: %v", err)
		}
		return offer
	})
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, false); offer || err != nil {
		t.Errorf("to be offered twice: %t %v", offer, err)
	}
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, true); !offer || err != nil {
		t.Errorf("what may not have been offered is not to be offered: %v", err)
	}
	s.offer()
	s.frame("a", "3")
	third, err := s.runtime("third").Accept(t.Context(), s.mine)
	if err != nil {
		t.Fatal(err)
	}
	if events, _ := s.receive(third, "3"); strings.Join(events, " ") != "2 3" {
		t.Errorf("the successor saw %v", events)
	}
}

// expired is a context that lasts just long enough for one query.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func groups(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	if err := s.channels.Offer(t.Context(), wire.Offer{SessionID: "}"}); err != nil {
		t.Fatal(err)
	}
	s.offer()
	picky := s.runtime("picky", func(o *callruntime.Options) { o.Group = "picky:" + s.id })
	if c, err := picky.Accept(expired(t), func(o wire.Offer) bool { return o.TeamID == "demo" }); err == nil {
		t.Errorf("took %s", c.ID)
	}
	if c, err := s.runtime("r").Accept(t.Context(), func(o wire.Offer) bool { return o.SessionID == "}" || s.mine(o) }); err != nil || c.ID != s.id {
		t.Errorf("not left to others: %+v, %v", c, err)
	}
}
