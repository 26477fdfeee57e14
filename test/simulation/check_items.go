package simulation

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

func (r *channelRecord) checkItems(in []streamed) {
	last := 0
	for _, s := range in {
		for _, i := range r.items {
			if i.isAwaited && (s.key == "result "+i.id || s.key == "timeout "+i.id || isPartOf(s.key, i.id)) && r.lostItem(i).IsZero() {
				if r.numbers[i.id] < last {
					r.violation("%s is on the stream after an entry of a later item", s.key)
				}
				last = r.numbers[i.id]
			}
		}
	}
	for _, i := range r.items {
		r.checkItem(i, in)
		r.checkParts(i, in)
		r.checkBlocked(i, in)
	}
}

// lostItem returns when the registration of an item was lost. A chat frame that was sent again has
// registered its item again.
func (r *channelRecord) lostItem(i *itemRecord) time.Time {
	at := r.ledger.lostAt(r.id, "await", i.id)
	if again := r.ledger.lostAt(r.id, "frame", i.id); at.IsZero() && i.ofFrame && again.After(i.awaitedAt) {
		at = again
	}
	return at
}

// lostResult returns when the accepted callback of an item was lost.
func (r *channelRecord) lostResult(i *itemRecord) (at time.Time) {
	for _, script := range []string{"callback", "stream"} {
		at = r.ledger.lostAt(r.id, script, i.id)
		if at.IsZero() && i.callbackID != "" {
			at = r.ledger.lostAt(r.id, script, i.callbackID)
		}
		if !at.IsZero() {
			break
		}
	}
	return at
}

func (r *channelRecord) checkItem(i *itemRecord, in []streamed) {
	results, timeouts := count(in, "result "+i.id), count(in, "timeout "+i.id)
	lost := r.lostItem(i)
	// If the callback was posted again since, it is not lost. If the runtime has cancelled the item, nobody waits for it.
	at := r.lostResult(i)
	repeated := results > 0 && i.lastAccepted.After(at)
	if !at.IsZero() && i.isAwaited && !i.acceptedAt.IsZero() && i.acceptedAt.Before(at) && !repeated && !i.isCancelled && !i.maybeCancelled {
		r.reported("the callback for item "+strconv.Itoa(i.number), at)
	}
	// Nobody reports a lost callback if its instance has crashed, or one that was rejected
	// while its item was lost: the item times out, and delays those behind it until then.
	waiting := slices.ContainsFunc(r.items, func(before *itemRecord) bool {
		lost := r.crashedAround(r.lostResult(before)) || !before.rejectedAt.IsZero() && !r.lostItem(before).IsZero()
		return before.isAwaited && r.numbers[before.id] <= r.numbers[i.id] && time.Now().Before(before.deadline) && lost
	})
	open := i.isAwaited && !r.ended && !i.isCancelled && !i.maybeCancelled && results+timeouts == 0
	switch {
	case results+timeouts > 1:
		r.violation("item %d has %d results and %d timeouts", i.number, results, timeouts)
	case !i.isAwaited && results > 0:
		r.violation("item %d has a result, although its Await failed", i.number)
	case i.isCancelled && results > 0 && r.ledger.lostAt(r.id, "cancel", i.id).IsZero():
		r.violation("item %d has a result, although it was cancelled", i.number)
	case !open:
	case !lost.IsZero():
		r.reported("item "+strconv.Itoa(i.number), lost)
	case waiting:
	case !i.acceptedAt.IsZero() && r.lostResult(i).IsZero():
		r.violation("the callback for item %d was accepted, but its result is not on the stream", i.number)
	case !i.rejectedAt.IsZero() && r.lostResult(i).IsZero():
		r.violation("the callback for item %d was rejected, but the item has not timed out", i.number)
	default:
		r.violation("item %d has neither a result nor a timeout", i.number)
	}
}

// checkBlocked checks that a result did not wait for an item that the runtime
// does not know, or longer than the items before it can take.
func (r *channelRecord) checkBlocked(i *itemRecord, in []streamed) {
	if i.acceptedAt.IsZero() || !r.lostItem(i).IsZero() {
		return
	}
	bound := i.lastAccepted
	for _, before := range r.items {
		if !before.isAwaited || r.numbers[before.id] >= r.numbers[i.id] {
			continue
		}
		settled := before.deadline
		for _, s := range in {
			if s.key == "result "+before.id || s.key == "timeout "+before.id {
				settled = s.at
			}
		}
		if settled.After(bound) {
			bound = settled
		}
	}
	for _, s := range in {
		if s.key == "result "+i.id && s.at.After(bound.Add(blockedSlack)) {
			r.violation("the result of item %d was blocked for %v", i.number, s.at.Sub(bound).Round(time.Millisecond))
		}
	}
}

func isPartOf(key, itemID string) bool {
	return strings.HasPrefix(key, "part ") && strings.HasSuffix(key, " of "+itemID)
}

// checkParts checks that the parts of a streamed answer are on the stream once, in order,
// before its end, and none after the item was cancelled.
func (r *channelRecord) checkParts(i *itemRecord, in []streamed) {
	parts, isSettled := 0, false
	for _, s := range in {
		switch {
		case s.key == "result "+i.id:
			isSettled = true
		case !isPartOf(s.key, i.id):
		case s.key != partKey(i.id, parts+1):
			r.violation("%s is on the stream after %d parts", s.key, parts)
		case isSettled:
			r.violation("%s is on the stream after the result", s.key)
		case i.isCancelled && s.at.After(i.cancelledAt) && r.ledger.lostAt(r.id, "cancel", i.id).IsZero():
			r.violation("%s is on the stream although the item was cancelled before", s.key)
		default:
			parts++
		}
	}
}
