package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
	"telapi/internal/kv"
)

func (r *channelRecord) newItem() *itemRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := &itemRecord{number: len(r.items) + 1}
	i.id = fmt.Sprintf("%s-i%d", r.name, i.number)
	r.items = append(r.items, i)
	return i
}

// chatItem returns the work item of a chat frame, a new one if its entry arrives for the first time.
func (r *channelRecord) chatItem(id string, answered bool) *itemRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.items {
		if i.id == id {
			i.rejectedAt = time.Time{} // the provider is asked again
			return i
		}
	}
	i := &itemRecord{number: len(r.items) + 1, id: id, ofFrame: true, answered: answered}
	r.items = append(r.items, i)
	return i
}

// knowsItem reports whether the runtime knows a work item. It does not know that of a chat frame
// whose entry has not arrived.
func (r *channelRecord) knowsItem(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.items, func(i *itemRecord) bool { return i.id == id })
}

// registered records the numbers of the work items that a call has registered. The store holds its lock.
func (r *channelRecord) registered(c command) {
	engine, meta := r.ledger.world.store.engine, kv.MetaKey(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range c.argv() {
		words := strings.Fields(engine.HGet(meta, engine.HGet(meta, "@"+id)))
		if len(words) > 1 {
			r.numbers[id] = number(words[1])
		}
	}
}

func (r *channelRecord) awaited(i *itemRecord, kind wire.WorkItemKind, w wire.Awaited, t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.token != "" && i.token != w.Token {
		r.violation("item %d has another token", i.number)
	}
	i.kind, i.token, i.deadline, i.claim, i.isAwaited, i.awaitedAt = kind, w.Token, time.UnixMilli(w.Deadline), t, true, time.Now()
	r.ledger.world.trace(t.process.host.name, "item %s awaited (answered: %v)", i.id, i.answered)
}

// itemToCancel returns the newest item whose streamed answer has begun and waits for earlier items;
// otherwise the newest item without an outcome. The parts of the first item would be rejected
// after its cancellation even if the store forgot that: its turn is over.
func (r *channelRecord) itemToCancel() *itemRecord {
	open := r.openItems()
	if len(open) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range slices.Backward(open[1:]) {
		if i.isStreaming() {
			return i
		}
	}
	return open[len(open)-1]
}

// isStreaming reports whether an answer has begun but not ended. The caller holds mu.
func (i *itemRecord) isStreaming() bool { return i.streamed && i.acceptedAt.IsZero() }

// streamBegun records that parts of an answer were delivered, and reports whether they are the first.
func (r *channelRecord) streamBegun(i *itemRecord) (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, i.streamed = !i.streamed, true
	return first
}

// interrupt makes the runtime cancel an item now if it waits for earlier ones, or if it lasts longer
// than the run. It reports whether the item lasts that long.
func (r *channelRecord) interrupt(i *itemRecord) (lasts bool) {
	open := r.openItems()
	r.mu.Lock()
	defer r.mu.Unlock()
	lasts = time.Until(i.deadline) > maxCalm && !r.ledger.world.faultsEnded()
	if r.active == nil || slices.Index(open, i) < 1 && !lasts {
		return false
	}
	select {
	case r.active.interrupted <- i:
	default:
	}
	return lasts
}

// openItems returns the items that the runtime waits for.
func (r *channelRecord) openItems() (open []*itemRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	settled := map[string]bool{}
	for _, key := range r.entries {
		settled[key] = true
	}
	for _, i := range r.items {
		if i.isAwaited && !settled["result "+i.id] && !settled["timeout "+i.id] && !i.isCancelled && time.Now().Before(i.deadline) {
			open = append(open, i)
		}
	}
	return open
}

// settledItems returns the items whose outcome the runtime has received.
func (r *channelRecord) settledItems() (settled []string) {
	open := r.openItems()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.items {
		if i.isAwaited && !slices.Contains(open, i) {
			settled = append(settled, i.id)
		}
	}
	return settled
}

// cancelling records that the cancellation of an item is under way.
func (r *channelRecord) cancelling(i *itemRecord, underWay bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.cancelling = underWay
}

func (r *channelRecord) cancelled(i *itemRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.isCancelled, i.cancelledAt = true, time.Now()
	r.ledger.world.trace(r.name, "item %s cancelled", i.id)
}

// discarded records that the runtime cancelled an item whose result it had
// received before the store lost it.
func (r *channelRecord) discarded(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range r.items {
		if i.id == id {
			i.maybeCancelled = true
		}
	}
}

func (r *channelRecord) maybeCancelled(i *itemRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.maybeCancelled = true
}

// answered records the answer to a callback that was posted at a time, and reports whether the
// provider is done.
func (r *channelRecord) answered(i *itemRecord, posted time.Time, receipt callback.Receipt, err error) (done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	unknown := err != nil && (fault.Is(err, fault.ServiceUnavailable) || fault.From(err).Code == fault.Internal)
	settled := r.ended || i.cancelling || i.isCancelled || i.maybeCancelled || r.ledger.lostSince(r.id, time.Time{})
	if !i.acceptedAt.IsZero() && !duplicate(err) && !unknown && !settled {
		r.violation("the callback for item %d was accepted, and then posted again with the result %v", i.number, err)
	}
	if err == nil && i.isCancelled && i.cancelledAt.Before(posted) && r.ledger.lostAt(r.id, "cancel", i.id).IsZero() {
		r.violation("the callback for item %d was accepted, although the item was cancelled before", i.number)
	}
	switch {
	case err == nil || duplicate(err):
		if i.acceptedAt.IsZero() {
			i.acceptedAt = time.Now()
		}
		if err == nil || i.lastAccepted.IsZero() || r.ledger.lostSince(r.id, i.lastAccepted) {
			i.lastAccepted = time.Now()
		}
		if err == nil {
			i.callbackID = receipt.CallbackID
		}
		r.ledger.world.trace("provider", "callback for %s accepted", i.id)
	case unknown:
		r.ledger.world.trace("provider", "callback for %s: %s", i.id, fault.From(err).Code)
		return false
	default:
		i.rejectedAt = time.Now()
		r.ledger.world.trace("provider", "callback for %s rejected: %s", i.id, fault.From(err).Code)
	}
	return true
}
