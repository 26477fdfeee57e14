package simulation

import (
	"slices"
	"strconv"
	"time"
)

func (r *channelRecord) checkItems(in []streamed) {
	last := 0
	for _, s := range in {
		for _, i := range r.items {
			if i.order > 0 && (s.key == "result "+i.id || s.key == "timeout "+i.id) && r.ledger.lostAt(r.id, "await", i.id).IsZero() {
				if i.order < last {
					r.violation("the outcome of item %d is on the stream after that of a later item", i.number)
				}
				last = i.order
			}
		}
	}
	for _, i := range r.items {
		r.checkItem(i, in)
		r.checkBlocked(i, in)
	}
}

// lostResult returns when the accepted callback of an item was lost.
func (r *channelRecord) lostResult(i *itemRecord) time.Time {
	at := r.ledger.lostAt(r.id, "callback", i.id)
	if at.IsZero() && i.callbackID != "" {
		at = r.ledger.lostAt(r.id, "callback", i.callbackID)
	}
	return at
}

func (r *channelRecord) checkItem(i *itemRecord, in []streamed) {
	results, timeouts := count(in, "result "+i.id), count(in, "timeout "+i.id)
	lost := r.ledger.lostAt(r.id, "await", i.id)
	// Only the provider knows of a lost callback, or of one that was refused while
	// its item was lost: the item times out, and delays those behind it until then.
	waiting := slices.ContainsFunc(r.items, func(before *itemRecord) bool {
		lost := !r.lostResult(before).IsZero() || !before.refusedAt.IsZero() && !r.ledger.lostAt(r.id, "await", before.id).IsZero()
		return before.order > 0 && before.order <= i.order && time.Now().Before(before.deadline) && lost
	})
	open := i.order > 0 && !i.isCancelled && !i.maybeCancelled && results+timeouts == 0
	switch {
	case results+timeouts > 1:
		r.violation("item %d has %d results and %d timeouts", i.number, results, timeouts)
	case i.order == 0 && results > 0:
		r.violation("item %d has a result, although its Await failed", i.number)
	case !open:
	case !lost.IsZero():
		r.reported("item "+strconv.Itoa(i.number), lost)
	case waiting:
	case !i.acceptedAt.IsZero() && r.lostResult(i).IsZero():
		r.violation("the callback for item %d was accepted, but its result is not on the stream", i.number)
	case !i.refusedAt.IsZero() && r.lostResult(i).IsZero():
		r.violation("the callback for item %d was refused, but the item has not timed out", i.number)
	default:
		r.violation("item %d has neither a result nor a timeout", i.number)
	}
}

// checkBlocked checks that a result did not wait for an item that the runtime
// does not know, or longer than the items before it can take.
func (r *channelRecord) checkBlocked(i *itemRecord, in []streamed) {
	if i.acceptedAt.IsZero() || !r.ledger.lostAt(r.id, "await", i.id).IsZero() {
		return
	}
	bound := i.acceptedAt
	for _, before := range r.items {
		if before.order == 0 || before.order >= i.order {
			continue
		}
		settled := before.deadline
		for _, s := range in {
			if s.key == "result "+before.id || s.key == "timeout "+before.id {
				settled = s.clock
			}
		}
		if settled.After(bound) {
			bound = settled
		}
	}
	for _, s := range in {
		if s.key == "result "+i.id && s.clock.After(bound.Add(blockedSlack)) {
			r.violation("the result of item %d was blocked for %v", i.number, s.clock.Sub(bound).Round(time.Millisecond))
		}
	}
}
