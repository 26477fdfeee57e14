package simulation

import (
	"fmt"
	"slices"
	"time"

	"telapi/internal/callback"
	"telapi/internal/calls"
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

func (r *channelRecord) awaited(i *itemRecord, w calls.WorkItem, t *claimedChannel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.kind, i.token, i.deadline, i.claim = w.Kind, w.Token, w.ExpiresAt, t
	if i.order == 0 { // awaiting an item again does not move it, unless the store has lost it
		for _, other := range r.items {
			i.order = max(i.order, other.order+1)
		}
	}
	r.ledger.world.trace(t.process.host.name, "item %s awaited (answered: %v)", i.id, i.answered)
}

// isUnknown reports whether the outcome of an item's registration is unknown.
func (l *ledger) isUnknown(channelID, itemID string) bool {
	r := l.channel(channelID)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.items, func(i *itemRecord) bool { return i.id == itemID && i.order == 0 })
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

func (r *channelRecord) cancelled(i *itemRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.isCancelled = true
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
	switch {
	case err == nil || duplicate(err):
		if i.acceptedAt.IsZero() {
			i.acceptedAt = time.Now()
		}
		if err == nil {
			i.callbackID = receipt.CallbackID
		}
		r.ledger.world.trace("provider", "callback for %s accepted", i.id)
	case fault.Is(err, fault.ServiceUnavailable), fault.From(err).Code == fault.Internal:
		r.ledger.world.trace("provider", "callback for %s: %s", i.id, fault.From(err).Code)
		return false
	default:
		i.refusedAt = time.Now()
		r.ledger.world.trace("provider", "callback for %s refused: %s", i.id, fault.From(err).Code)
	}
	return true
}
