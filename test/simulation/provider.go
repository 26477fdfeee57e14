package simulation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
)

// await registers a work item and passes it to the provider.
func (t *claimedChannel) await() {
	item := t.record.newItem()
	o := wire.Await{WorkItemID: item.id, Kind: wire.LLMItem, TTLMs: new((4*time.Second + time.Duration(t.rng.Int64N(int64(10*time.Second)))).Milliseconds())}
	if t.rng.IntN(2) == 0 {
		o.Kind = wire.BotItem
	}
	if item.answered = t.rng.IntN(5) > 0; item.answered && t.rng.IntN(3) == 0 {
		o.TTLMs = new((10 * time.Minute).Milliseconds()) // longer than the run
	}
	ctx, cancel := t.ctx, context.CancelFunc(func() {})
	if t.rng.IntN(2) == 0 { // if the outcome is unknown then, Await cancels the item
		ctx, cancel = context.WithTimeout(t.ctx, time.Second+time.Duration(t.rng.Int64N(int64(3*time.Second))))
	}
	defer cancel()
	registered, err := t.Await(ctx, o)
	if err != nil {
		t.failed("await", err)
		return
	}
	t.record.awaited(item, o.Kind, registered, t)
	if item.answered {
		t.process.world.running.Go(func() { t.process.world.answer(t.record, item) })
	}
}

// ask passes the work item of a chat frame to the provider, again if the frame arrives again.
func (t *claimedChannel) ask(w wire.Awaited) {
	kind := wire.BotItem
	if strings.Contains(w.URL, "/llm/") {
		kind = wire.LLMItem
	}
	item := t.record.chatItem(w.WorkItemID, t.receiving.IntN(5) > 0)
	t.record.awaited(item, kind, w, t)
	if item.answered {
		t.process.world.running.Go(func() { t.process.world.answer(t.record, item) })
	}
}

// awaitAgain registers the work items that the store has lost, and cancels those
// whose result the store has lost after the runtime had received it. open lists the items
// that the store has; nil: not known. After a loss the providers answer again.
func (t *claimedChannel) awaitAgain(open []wire.OpenWorkItem, lost bool) {
	awaited := t.record.openItems()
	for _, o := range open {
		if !slices.ContainsFunc(awaited, func(item *itemRecord) bool { return o.WorkItemID == item.id }) && t.record.knowsItem(o.WorkItemID) {
			t.discard(o.WorkItemID)
		}
	}
	if open == nil {
		for _, id := range t.record.settledItems() {
			t.discard(id)
		}
	}
	for _, item := range awaited {
		if lost && item.answered { // the store may have lost the callback
			t.process.world.running.Go(func() { t.process.world.answer(t.record, item) })
		}
		if slices.ContainsFunc(open, func(o wire.OpenWorkItem) bool { return o.WorkItemID == item.id }) {
			continue
		}
		t.process.world.trace(t.process.host.name, "awaits item %s again", item.id)
		o := wire.Await{WorkItemID: item.id, Kind: item.kind, TTLMs: new(time.Until(item.deadline).Milliseconds())}
		if registered, err := t.Await(t.ctx, o); err == nil {
			t.record.awaited(item, o.Kind, registered, t)
		}
	}
}

// discard cancels an item that the runtime does not wait for.
func (t *claimedChannel) discard(id string) {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	t.record.discarded(id)
	_ = t.Cancel(ctx, id)
}

// cancel cancels a work item. It does nothing with nil.
func (t *claimedChannel) cancel(item *itemRecord) {
	if item == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, 3*time.Second)
	defer cancel()
	t.record.cancelling(item, true)
	defer t.record.cancelling(item, false)
	err := t.Cancel(ctx, item.id)
	switch {
	case err == nil:
		t.record.cancelled(item)
	case errors.Is(err, callruntime.ErrNotFound): // settled
	default:
		t.record.maybeCancelled(item)
		t.failed("cancel", err)
	}
}

// answer is a provider: it posts the result of a work item and retries until it
// knows the outcome.
func (w *world) answer(r *channelRecord, item *itemRecord) {
	rng := w.rng("provider", r.name, item.number)
	body := fmt.Appendf(nil, `{"content":"%s"}`, item.id)
	credential := callback.Credential{ChannelID: r.id, Kind: item.kind, WorkItemID: item.id}
	if item.kind == wire.BotItem {
		body = fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"%s"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"%s"}}}]}}`, r.id, item.id)
	}
	sum := sha256.Sum256([]byte(item.token))
	credential.Digest = hex.EncodeToString(sum[:])
	streamed := newStreamedAnswer(rng)
	if again := streamed != nil && rng.IntN(6) == 0; again { // the provider loses patience, and an instance still reads the first attempt
		w.running.Go(func() { w.attemptSomewhere(r, item, credential, streamed) })
	}
	again, insisted := rng.IntN(6) == 0, false // post once more after success
	for wait := time.Duration(rng.Int64N(int64(5 * time.Second))); w.sleep(wait); wait = 500*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second))) {
		running := w.runningInstances()
		if len(running) == 0 {
			continue
		}
		process := running[rng.IntN(len(running))]
		lostRequest, lostReply := rng.IntN(30) == 0, rng.IntN(30) == 0
		if lostRequest {
			continue
		}
		var receipt callback.Receipt
		var err error
		known, posted := true, time.Now()
		if streamed != nil {
			receipt, known, err = w.attempt(process, r, item, credential, streamed, rng)
		} else {
			err = process.call(func(ctx context.Context) (err error) {
				receipt, err = process.callbacks.Accept(ctx, callback.Request{Credential: credential, Body: body, Received: time.Now()})
				return err
			})
		}
		if lostReply || !known || !process.host.alive() {
			continue
		}
		done := r.answered(item, posted, receipt, err)
		insists := streamed != nil && fault.Is(err, fault.CallbackConsumed) && !insisted
		switch {
		case done && insists: // a cancelled item gets no parts of a second stream either
			insisted = true
		case done && again:
			again = false
		case done:
			return
		}
	}
}

// duplicate reports whether a callback was rejected because it was accepted before.
func duplicate(err error) bool {
	if !fault.Is(err, fault.CallbackConsumed) {
		return false
	}
	var details struct {
		Duplicate bool `json:"duplicate"`
	}
	encoded, _ := json.Marshal(fault.From(err).Details)
	_ = json.Unmarshal(encoded, &details)
	return details.Duplicate
}

// deleteSession deletes a session, or revokes it, and repeats that until it succeeds.
func (w *world) deleteSession(r *channelRecord, revoke bool) {
	r.endRequested()
	rng := w.rng("delete", r.name)
	for wait := time.Duration(0); w.sleep(wait); wait = time.Second + time.Duration(rng.Int64N(int64(2*time.Second))) {
		running := w.runningInstances()
		if len(running) == 0 {
			continue
		}
		process := running[rng.IntN(len(running))]
		ctx, cancel := context.WithTimeout(process.ctx, 10*time.Second)
		w.trace("admin", "deletes the session of %s on %s (revoke: %v)", r.name, process.host.name, revoke)
		var err error
		if revoke {
			err = process.sessions.Revoke(ctx, r.id, func(string) error { return nil })
		} else {
			err = process.sessions.Delete(ctx, teamID, r.id)
		}
		cancel()
		if err == nil && process.host.alive() {
			r.deletionAcknowledged()
			return
		}
	}
}
