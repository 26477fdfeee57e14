package callruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// askEvery bounds how long a reader of offers waits before it looks for those
// that another member of its group read and did not claim, and before it sees
// that its context has ended.
const askEvery = 500 * time.Millisecond

// Accept waits for a session that no runtime has, claims it and returns its
// channel, with Offer set. Sessions that want refuses (nil takes all) are left
// to other groups. Of any number of runtimes one gets a session; should that one
// die, the session is offered again.
func (r *Runtime) Accept(ctx context.Context, want func(wire.Offer) bool) (*Channel, error) {
	for ctx.Err() == nil && r.life.Err() == nil {
		found, err := r.offers(ctx)
		if err != nil && r.life.Err() == nil {
			return nil, fmt.Errorf("wait for a session: %w", err)
		}
		for _, entry := range found {
			c, err := r.consider(ctx, entry, want)
			if c != nil || err != nil && r.life.Err() == nil {
				return c, err
			}
		}
	}
	return nil, fmt.Errorf("wait for a session: %w", cmp.Or(ctx.Err(), context.Cause(r.life)))
}

// offers returns what was left behind by members that died, else what is new,
// one at a time so that others get theirs.
func (r *Runtime) offers(ctx context.Context) ([]rueidis.XRangeEntry, error) {
	c := r.client
	reply, err := c.Do(ctx, c.B().Xautoclaim().Key(kv.OffersStream).Group(r.opts.Group).Consumer(r.opts.Name).
		MinIdleTime(fmt.Sprint(r.opts.Lease.Milliseconds())).Start("0-0").Count(1).Build().ToRetryable()).ToArray()
	if err == nil && len(reply) > 1 {
		if found, err := reply[1].AsXRange(); err == nil && len(found) > 0 {
			return found, nil
		}
	}
	if err == nil {
		var streams map[string][]rueidis.XRangeEntry
		streams, err = c.Do(ctx, c.B().Xreadgroup().Group(r.opts.Group, r.opts.Name).Count(1).
			Block(askEvery.Milliseconds()).Streams().Key(kv.OffersStream).Id(">").Build()).AsXRead()
		if err == nil || rueidis.IsRedisNil(err) {
			return streams[kv.OffersStream], nil
		}
	}
	switch word := refusal(err); {
	case word == "NOGROUP":
		return nil, r.join(ctx)
	case word != "" && !slices.Contains(betweenMasters, word), ctx.Err() != nil:
		return nil, err
	}
	wait(ctx, askEvery) // the store is away
	return nil, nil
}

// betweenMasters is what a server says whose place another takes.
var betweenMasters = []string{"UNBLOCKED", "READONLY", "MASTERDOWN"}

// refusal is the word by which the store says why it refuses, if it does.
func refusal(err error) string {
	if said, ok := rueidis.IsRedisErr(err); ok {
		word, _, _ := strings.Cut(said.Error(), " ")
		return word
	}
	return ""
}

// join makes the group, which begins with the oldest offer there is.
func (r *Runtime) join(ctx context.Context) error {
	c := r.client
	err := c.Do(ctx, c.B().XgroupCreate().Key(kv.OffersStream).Group(r.opts.Group).Id("0").Mkstream().Build().ToRetryable()).Error()
	if refusal(err) == "BUSYGROUP" {
		return nil // another member was faster
	}
	return err
}

// consider claims the channel of an offer, if it is wanted and to be had. An
// offer stays pending, and is found by others, while it is not known what became
// of it.
func (r *Runtime) consider(ctx context.Context, entry rueidis.XRangeEntry, want func(wire.Offer) bool) (*Channel, error) {
	var offer wire.Offer
	if err := json.Unmarshal([]byte(entry.FieldValues["offer"]), &offer); err != nil || offer.SessionID == "" {
		return nil, r.settle(ctx, entry.ID, true) // nobody can read it
	}
	if want != nil && !want(offer) {
		return nil, r.settle(ctx, entry.ID, false)
	}
	c, err := r.take(ctx, offer.SessionID, "accept")
	if errors.Is(err, ErrLost) || errors.Is(err, ErrClaimed) {
		return nil, r.settle(ctx, entry.ID, true)
	}
	if err != nil {
		return nil, fmt.Errorf("claim session %s: %w", offer.SessionID, err)
	}
	c.Offer = &offer
	_ = r.settle(ctx, entry.ID, true) // an offer that is found again is seen to be taken
	return c, nil
}

// settle takes an offer off the group's list, and off the stream when no group
// needs it any more.
func (r *Runtime) settle(ctx context.Context, id string, remove bool) error {
	c := r.client
	commands := rueidis.Commands{c.B().Xack().Key(kv.OffersStream).Group(r.opts.Group).Id(id).Build().ToRetryable()}
	if remove {
		commands = append(commands, c.B().Xdel().Key(kv.OffersStream).Id(id).Build().ToRetryable())
	}
	for _, reply := range c.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			return fmt.Errorf("settle an offer: %w", err)
		}
	}
	return nil
}
