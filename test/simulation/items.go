package simulation

import (
	"fmt"
	"slices"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
)

func (r *channelRecord) newItem() *itemRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := &itemRecord{number: len(r.items) + 1}
	i.id = fmt.Sprintf("%s-i%d", r.name, i.number)
	r.items = append(r.items, i)
	return i
}

func (r *channelRecord) awaited(i *itemRecord, kind wire.WorkItemKind, w wire.Awaited, t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.kind, i.token, i.deadline, i.claim = kind, w.Token, time.UnixMilli(w.Deadline), t
	if i.order == 0 { // awaiting an item again does not move it, unless the store has lost it
		for _, other := range r.items {
			i.order = max(i.order, other.order+1)
		}
	}
	r.ledger.world.trace(t.process.host.name, "item %s awaited (answered: %v)", i.id, i.answered)
}

// openItem returns the newest item without an outcome.
func (r *channelRecord) openItem() *itemRecord {
	if open := r.openItems(); len(open) > 0 {
		return open[len(open)-1]
	}
	return nil
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
		if i.order > 0 && !settled["result "+i.id] && !settled["timeout "+i.id] && !i.isCancelled && time.Now().Before(i.deadline) {
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
		if i.order > 0 && !slices.Contains(open, i) {
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

// answered records the answer to a callback and reports whether the provider is
// done.
func (r *channelRecord) answered(i *itemRecord, receipt callback.Receipt, err error) (done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	unknown := err != nil && (fault.Is(err, fault.ServiceUnavailable) || fault.From(err).Code == fault.Internal)
	settled := r.ended || i.cancelling || i.isCancelled || i.maybeCancelled || r.ledger.lostSince(r.id, time.Time{})
	if !i.acceptedAt.IsZero() && !duplicate(err) && !unknown && !settled {
		r.violation("the callback for item %d was accepted, and then posted again with the result %v", i.number, err)
	}
	switch {
	case err == nil || duplicate(err):
		if i.acceptedAt.IsZero() {
			i.acceptedAt = time.Now()
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
