package simulation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
)

// await registers a work item and passes it to the provider.
func (t *claimedChannel) await() {
	item := t.record.newItem()
	o := calls.AwaitOptions{WorkItemID: item.id, Kind: wire.LLMItem, TTL: 4*time.Second + time.Duration(t.rng.Int64N(int64(10*time.Second)))}
	if t.rng.IntN(2) == 0 {
		o.Kind = wire.BotItem
	}
	if item.answered = t.rng.IntN(5) > 0; item.answered && t.rng.IntN(3) == 0 {
		o.TTL = 10 * time.Minute // longer than the run
	}
	if t.rng.IntN(2) == 0 {
		o.Token = calls.NewToken()
	}
	registered, err := t.register(o)
	if err != nil {
		return
	}
	t.record.awaited(item, registered, t)
	if item.answered {
		t.process.world.running.Go(func() { t.process.world.answer(t.record, item) })
	}
}

// register awaits a work item. With a token it repeats a call whose outcome is
// unknown.
func (t *claimedChannel) register(o calls.AwaitOptions) (item calls.WorkItem, err error) {
	for {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second+time.Duration(t.rng.Int64N(int64(3*time.Second))))
		item, err = t.Await(ctx, o)
		cancel()
		if err == nil {
			return item, nil
		}
		if done, _ := t.failed("await", err); done || o.Token == "" {
			return item, err
		}
	}
}

// awaitAgain registers the work items that the store has lost, and cancels those
// whose result the store has lost after the runtime had received it.
func (t *claimedChannel) awaitAgain() {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	open, err := t.WorkItems(ctx)
	cancel()
	if err != nil {
		return
	}
	awaited := t.record.openItems()
	for _, o := range open {
		if !slices.ContainsFunc(awaited, func(item *itemRecord) bool { return o.ID == item.id }) {
			ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
			_ = t.Cancel(ctx, o.ID)
			t.record.discarded(o.ID)
			cancel()
		}
	}
	for _, item := range awaited {
		if slices.ContainsFunc(open, func(o calls.OpenWorkItem) bool { return o.ID == item.id }) {
			continue
		}
		t.process.world.trace(t.process.host.name, "awaits item %s again", item.id)
		o := calls.AwaitOptions{WorkItemID: item.id, Token: item.token, Kind: item.kind, TTL: time.Until(item.deadline)}
		if registered, err := t.register(o); err == nil {
			t.record.awaited(item, registered, t)
		}
	}
}

// cancel cancels the newest work item that has no result yet.
func (t *claimedChannel) cancel() {
	item := t.record.openItem()
	if item == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.ctx, 3*time.Second)
	defer cancel()
	err := t.Cancel(ctx, item.id)
	switch {
	case err == nil:
		t.record.cancelled(item)
	case errors.Is(err, calls.ErrWorkItemNotFound): // settled
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
		credential.WorkItemID = ""
		body = fmt.Appendf(nil, `{"conversation":{"identifier":{"id":"%s"}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"%s"}}}]}}`, r.id, item.id)
	}
	sum := sha256.Sum256([]byte(item.token))
	credential.Digest = hex.EncodeToString(sum[:])
	again := rng.IntN(6) == 0 // post once more after success
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
		ctx, cancel := context.WithTimeout(process.ctx, 10*time.Second)
		receipt, err := process.callbacks.Accept(ctx, callback.Request{Credential: credential, Body: body, Received: time.Now()})
		cancel()
		if lostReply || !process.host.alive() {
			continue
		}
		if done := r.answered(item, receipt, err); done && !again {
			return
		} else if done {
			again = false
		}
	}
}

// duplicate reports whether a callback was refused because it was accepted before.
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
