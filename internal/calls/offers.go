package calls

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/kv"
)

const (
	offerBlock     = 500 * time.Millisecond // how long one read of the offers waits for new ones
	offerRetry     = 500 * time.Millisecond // before an offer is claimed again after the store has failed
	resyncInterval = time.Second            // between two comparisons of the list with the stream
	offerBatch     = 1000                   // offers read at once
	maxOffers      = "100000"               // bounds the stream while no runtime accepts sessions
)

// Demand is a request for one session.
type Demand struct {
	Team string                 // whose sessions; empty: of every team
	Want func(*wire.Offer) bool // nil: every session
	// Claim returns how to claim the session of an offer. If it fails, the demand waits
	// for another session.
	Claim func(ctx context.Context, sessionID string) (Claim, error)
	// Missed is called after Claim if another runtime has claimed the session, or it is over.
	// It may be nil.
	Missed func()
	// Got is called in a goroutine of its own, once, with the claimed session: nil if the
	// demand was withdrawn while a session was claimed for it, and that failed.
	Got func(*Channel)

	number    int64 // in the order of the demands
	withdrawn bool
}

// offers is the list of the sessions that wait for a runtime, a copy of the stream in the
// store, and of the demands that wait for a session.
type offers struct {
	mu      sync.Mutex
	started bool
	last    string                   // ID of the offer that was read last; used by followOffers only
	waiting []*waitingOffer          // the oldest first
	byID    map[string]*waitingOffer // the same
	byTeam  map[string]int           // how many of them
	demands []*Demand                // the oldest first
	number  int64                    // of the newest demand
}

// waitingOffer is an offer on the stream.
type waitingOffer struct {
	id        string
	offer     wire.Offer
	expiresAt int64 // Unix ms of the store's clock; 0: never
	busy      bool  // it is being claimed for a demand
}

// Demand adds a demand, unless it was withdrawn meanwhile. Sessions that wait longest are given
// first, to the demands that wait longest.
func (r *Runtime) Demand(d *Demand) {
	o := &r.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.withdrawn {
		return
	}
	if !o.started {
		o.started = r.start(r.followOffers) == nil
	}
	o.number++
	d.number = o.number
	r.addDemand(d)
}

// Withdraw removes a demand. It returns false if that does not wait: a session was claimed for
// it, or is being claimed, so that Got is called; or it was not added yet, and never will be.
func (r *Runtime) Withdraw(d *Demand) bool {
	o := &r.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	i, found := o.find(d)
	d.withdrawn = true
	if found {
		o.demands = slices.Delete(o.demands, i, i+1)
	}
	return found
}

func (o *offers) find(d *Demand) (int, bool) {
	return slices.BinarySearchFunc(o.demands, d.number, func(other *Demand, number int64) int { return cmp.Compare(other.number, number) })
}

func (d *Demand) wants(offer *wire.Offer) bool {
	return (d.Team == "" || d.Team == offer.TeamID) && (d.Want == nil || d.Want(offer))
}

// Reoffer gives the offer of a session to a demand that did not want it before.
func (r *Runtime) Reoffer(sessionID string) {
	o := &r.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.waiting {
		if w.offer.SessionID == sessionID && !w.busy {
			r.giveOffer(w)
			return
		}
	}
}

// addDemand gives the demand the oldest offer that it wants, or lets it wait. The caller
// holds mu.
func (r *Runtime) addDemand(d *Demand) {
	o := &r.offers
	if d.Team == "" || o.byTeam[d.Team] > 0 {
		for _, w := range o.waiting {
			if !w.busy && d.wants(&w.offer) {
				r.give(w, d)
				return
			}
		}
	}
	i, _ := o.find(d)
	o.demands = slices.Insert(o.demands, i, d)
}

// giveOffer gives an offer to the oldest demand that wants it, or lets it wait. The caller
// holds mu.
func (r *Runtime) giveOffer(w *waitingOffer) {
	o := &r.offers
	for i, d := range o.demands {
		if d.wants(&w.offer) {
			o.demands = slices.Delete(o.demands, i, i+1)
			r.give(w, d)
			return
		}
	}
}

func (r *Runtime) give(w *waitingOffer, d *Demand) {
	w.busy = true
	if r.start(func() { r.claimOffer(w, d) }) != nil {
		w.busy = false // the runtime is closed
	}
}

// claimOffer claims a session for a demand. If another runtime has it, the offer is
// removed and the demand gets the next one. If the outcome is unknown, the claim is undone.
func (r *Runtime) claimOffer(w *waitingOffer, d *Demand) {
	id := w.offer.SessionID
	var c *Channel
	var claim Claim
	err := ErrEnded
	if !r.expired(w) {
		ctx, cancel := context.WithTimeout(r.ctx, attemptTimeout)
		if claim, err = d.Claim(ctx, id); err == nil {
			c, err = r.claimChannel(ctx, claim, id, "accept", claim.AwaitChat)
		}
		cancel()
	}
	gone := err == nil || IsGone(err) // the session does not wait any more
	switch {
	case c != nil:
		c.Offer = &w.offer // newer than that of the channel
	case !gone && !errors.Is(err, ErrReplaced):
		_ = background.Sleep(r.ctx, offerRetry)
	case gone && claim.Token != "" && d.Missed != nil:
		d.Missed()
	}
	r.demandDone(d, c)
	if !gone && claim.Token != "" {
		gone = r.undo(id, claim.Token)
	}
	r.offerDone(w, gone)
	if gone {
		r.removeOffers(w.id)
	}
}

// undo releases a claim until that succeeds, and offers the session again. It returns false
// if the claim did not exist.
func (r *Runtime) undo(channelID, token string) (existed bool) {
	for r.ctx.Err() == nil {
		if existed, err := r.revoke(r.ctx, channelID, token); err == nil {
			return existed
		}
		_ = background.Sleep(r.ctx, offerRetry)
	}
	return false
}

// revoke releases the claim with a token, or with one of a connection, and offers its
// session. It returns whether there was one to offer.
func (r *Runtime) revoke(ctx context.Context, channelID, token string) (offered bool, err error) {
	released, offered, err := r.release(ctx, channelID, token, true)
	if released != "" {
		r.releaseLater(channelID, released)
	}
	return offered, err
}

// releaseLater repeats a release that a failover may have lost. If the session has ended, nobody
// else would offer it.
func (r *Runtime) releaseLater(channelID, token string) {
	r.callLater(func(ctx context.Context) error {
		_, _, err := r.release(ctx, channelID, token, false)
		return err
	})
}

// release runs the script revoke and offers the session. It returns the token of the claim that it has released.
func (r *Runtime) release(ctx context.Context, channelID, token string, again bool) (released string, offered bool, err error) {
	c := Channel{ID: channelID, runtime: r}
	reply, err := c.run(ctx, "revoke", token).AsStrSlice()
	if err == nil {
		err = r.offer(ctx, reply[1], again)
	}
	if err != nil {
		return "", false, wrap("release a claim", err)
	}
	return reply[0], reply[1] != "", nil
}

// removeOffers removes offers from the stream. If it fails, the next reader finds that the
// sessions are claimed or expired.
func (r *Runtime) removeOffers(ids ...string) {
	ctx, cancel := context.WithTimeout(r.ctx, attemptTimeout)
	defer cancel()
	r.client.Do(ctx, r.client.B().Xdel().Key(kv.OffersStream).Id(ids...).Build().ToRetryable())
}

// expired reports whether the session of an offer has expired, by the store's clock.
func (r *Runtime) expired(w *waitingOffer) bool {
	now, err := strconv.ParseInt(r.clock.AtEarliest("", time.Now()), 10, 64)
	return err == nil && w.expiresAt > 0 && w.expiresAt <= now
}

// offerDone gives an offer to the next demand, unless it is gone.
func (r *Runtime) offerDone(w *waitingOffer, gone bool) {
	o := &r.offers
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		o.remove(w)
	} else {
		w.busy = false
		r.giveOffer(w)
	}
}

// demandDone passes a claimed session on. Without one, the demand gets the next offer.
func (r *Runtime) demandDone(d *Demand, c *Channel) {
	r.offers.mu.Lock()
	defer r.offers.mu.Unlock()
	if c == nil && !d.withdrawn {
		r.addDemand(d)
	} else {
		_ = r.start(func() { d.Got(c) }) // a closed runtime has no claims to renew
	}
}

// remove removes an offer from the list. The caller holds mu.
func (o *offers) remove(w *waitingOffer) {
	i := slices.Index(o.waiting, w)
	if i < 0 {
		return
	}
	o.waiting = slices.Delete(o.waiting, i, i+1)
	delete(o.byID, w.id)
	if o.byTeam[w.offer.TeamID]--; o.byTeam[w.offer.TeamID] == 0 {
		delete(o.byTeam, w.offer.TeamID)
	}
}

// followOffers keeps the list equal to the stream until the runtime is closed.
func (r *Runtime) followOffers() {
	next := time.Now().Add(resyncInterval)
	for r.ctx.Err() == nil {
		if r.readOffers() != nil {
			_ = background.Sleep(r.ctx, offerRetry)
		} else if start := time.Now(); !start.Before(next) {
			r.resyncOffers()
			next = time.Now().Add(max(resyncInterval, 20*time.Since(start))) // a long list costs at most 5 % of the time
		}
	}
}

// readOffers adds new offers, after waiting for them.
func (r *Runtime) readOffers() error {
	read := r.client.B().Xread().Count(offerBatch).Block(offerBlock.Milliseconds()).Streams().Key(kv.OffersStream).Id(r.offers.last).Build()
	streams, err := r.client.Do(r.ctx, read).AsXRead()
	if err != nil && !rueidis.IsRedisNil(err) {
		return err
	}
	r.addOffers(streams[kv.OffersStream])
	return nil
}

// addOffers adds the offers of a part of the stream that are not on the list. It removes expired
// ones from the stream.
func (r *Runtime) addOffers(entries []rueidis.XRangeEntry) {
	o := &r.offers
	var expired []string
	o.mu.Lock()
	for _, entry := range entries {
		o.last = entry.ID
		w := &waitingOffer{id: entry.ID}
		if o.byID[w.id] != nil || json.Unmarshal([]byte(entry.FieldValues["offer"]), &w.offer) != nil || w.offer.SessionID == "" {
			continue
		}
		w.expiresAt, _ = strconv.ParseInt(entry.FieldValues["expiresAt"], 10, 64) // 0 if missing
		if r.expired(w) {
			expired = append(expired, w.id)
			continue
		}
		o.byID[w.id] = w
		o.byTeam[w.offer.TeamID]++
		o.waiting = append(o.waiting, w)
		r.giveOffer(w)
	}
	o.mu.Unlock()
	if len(expired) > 0 {
		r.removeOffers(expired...)
	}
}

// resyncOffers removes offers that others have removed from the stream, and adds those
// that were not read.
func (r *Runtime) resyncOffers() {
	o := &r.offers
	length, err := r.client.Do(r.ctx, r.client.B().Xlen().Key(kv.OffersStream).Build()).AsInt64()
	o.mu.Lock()
	equal := int64(len(o.waiting)) == length
	o.mu.Unlock()
	if err != nil || equal {
		return
	}
	listed := map[string]bool{}
	for from, more := "-", true; more; {
		page, err := r.client.Do(r.ctx, r.client.B().Xrange().Key(kv.OffersStream).Start(from).End("+").Count(offerBatch).Build()).AsXRange()
		if err != nil {
			return
		}
		r.addOffers(page)
		for _, entry := range page {
			listed[entry.ID] = true
			from = "(" + entry.ID
		}
		more = len(page) == offerBatch
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range slices.Clone(o.waiting) {
		if !w.busy && !listed[w.id] {
			o.remove(w)
		}
	}
}
