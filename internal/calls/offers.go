package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/internal/redisconn"
	"telapi/internal/sleep"
)

// offerInterval bounds how long Accept blocks before it looks for offers that
// another member of the group read and did not claim, and before it notices that
// its context has ended.
const offerInterval = 500 * time.Millisecond

// Accept waits for an unclaimed session, claims it and returns its channel, with
// Offer set. It leaves sessions for which want returns false to other groups; nil
// accepts all. Exactly one runtime gets a session. If that runtime dies, the
// session is offered again.
func (r *Runtime) Accept(ctx context.Context, want func(wire.Offer) bool) (*Channel, error) {
	for ctx.Err() == nil && r.ctx.Err() == nil {
		entries, err := r.offers(ctx)
		if err != nil && r.ctx.Err() == nil {
			return nil, fmt.Errorf("accept a session: %w", err)
		}
		for _, entry := range entries {
			c, err := r.acceptOffer(ctx, entry, want)
			for redisconn.Temporary(err) && sleep.For(ctx, offerInterval) == nil {
				c, err = r.acceptOffer(ctx, entry, want)
			}
			if c != nil || err != nil && r.ctx.Err() == nil {
				return c, err
			}
		}
	}
	return nil, fmt.Errorf("accept a session: %w", cmp.Or(ctx.Err(), context.Cause(r.ctx)))
}

// offers returns at most one offer, so that other members get theirs. It returns
// nothing while the store is unavailable.
func (r *Runtime) offers(ctx context.Context) ([]rueidis.XRangeEntry, error) {
	entries, err := r.offered.Read(ctx, r.client, 1, offerInterval)
	if err == nil {
		return entries, nil
	}
	if redisconn.ErrorCode(err) != "" && !redisconn.Temporary(err) || ctx.Err() != nil {
		return nil, err
	}
	_ = sleep.For(ctx, offerInterval)
	return nil, nil
}

// acceptOffer claims the channel of an offer if it is wanted and unclaimed. On an
// error the offer stays pending, so that another member finds it.
func (r *Runtime) acceptOffer(ctx context.Context, entry rueidis.XRangeEntry, want func(wire.Offer) bool) (*Channel, error) {
	var offer wire.Offer
	if err := json.Unmarshal([]byte(entry.FieldValues["offer"]), &offer); err != nil || offer.SessionID == "" {
		return nil, r.ackOffer(ctx, entry.ID, true) // invalid for every runtime
	}
	if offer.ExpiresAt > 0 && offer.ExpiresAt <= time.Now().UnixMilli() {
		if dropped, err := r.dropExpired(ctx, entry.ID); dropped || err != nil {
			return nil, err
		}
	}
	if want != nil && !want(offer) {
		return nil, r.ackOffer(ctx, entry.ID, false)
	}
	c, err := r.claimChannel(ctx, offer.SessionID, "accept")
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrClaimed) || errors.Is(err, ErrEnded) {
		return nil, r.ackOffer(ctx, entry.ID, true)
	}
	if err != nil {
		return nil, fmt.Errorf("claim session %s: %w", offer.SessionID, err)
	}
	c.Offer = &offer
	_ = r.ackOffer(ctx, entry.ID, true) // if this fails, the next reader finds the session claimed
	return c, nil
}

// dropBatch is the number of offers that one call of drop_offers.lua checks.
const dropBatch = 1000

var dropOffersScript = rueidis.NewLuaScriptRetryable(lua.Script("drop_offers"))

// dropExpired deletes the expired offers from an ID on, by the store's clock, and
// reports whether that offer was one of them. Without it, a new caller would wait
// until the runtimes have read every expired offer of a long outage.
func (r *Runtime) dropExpired(ctx context.Context, from string) (dropped bool, err error) {
	for start := from; ; {
		reply, err := dropOffersScript.Exec(ctx, r.client, []string{kv.OffersStream}, []string{start, strconv.Itoa(dropBatch)}).ToArray()
		if err != nil || len(reply) != 3 {
			return dropped, fmt.Errorf("drop expired offers: %w", cmp.Or(err, errors.New("unexpected reply")))
		}
		deleted, _ := reply[0].AsInt64()
		last, _ := reply[1].ToString()
		if start == from {
			first, _ := reply[2].AsInt64()
			dropped = first == 1
		}
		if deleted == 0 || last == start {
			return dropped, nil
		}
		start = last
	}
}

// ackOffer removes an offer from the group's pending list, and from the stream if
// no other group needs it.
func (r *Runtime) ackOffer(ctx context.Context, id string, remove bool) error {
	c := r.client
	commands := rueidis.Commands{c.B().Xack().Key(kv.OffersStream).Group(r.opts.Group).Id(id).Build().ToRetryable()}
	if remove {
		commands = append(commands, c.B().Xdel().Key(kv.OffersStream).Id(id).Build().ToRetryable())
	}
	for _, reply := range c.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			return fmt.Errorf("acknowledge an offer: %w", err)
		}
	}
	return nil
}
