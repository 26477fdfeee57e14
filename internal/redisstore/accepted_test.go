package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// The runtime learns at once that a failover has lost a callback that was accepted. Its work
// item would block the channel until it times out.
func TestLostCallbackIsReported(t *testing.T) {
	t.Parallel()
	stream := func(d *callbackFixture, item calls.WorkItem, text string, newest int, want callback.Status) {
		result, err := d.callbacks.DeliverStream(d.Context(), d.streamed(item, text, newest))
		if err != nil || result.Status != want {
			d.Fatalf("streamed %q: %s, %v; want %s", text, result.Status, err, want)
		}
	}
	for name, c := range map[string]struct {
		kept, lost func(d *callbackFixture, first, second, shared calls.WorkItem)
	}{
		"routed":         {lost: func(d *callbackFixture, first, _, _ calls.WorkItem) { d.expect(first, "a", callback.Routed) }},
		"parked":         {lost: func(d *callbackFixture, _, second, _ calls.WorkItem) { d.expect(second, "a", callback.Parked) }},
		"of the channel": {lost: func(d *callbackFixture, _, _, shared calls.WorkItem) { d.expect(shared, "a", callback.Routed) }},
		"after another loss, together with its report": {lost: func(d *callbackFixture, first, _, _ calls.WorkItem) {
			d.epoch += fmt.Sprint(time.Now().UnixMilli())
			d.do("HSET", kv.MetaKey(d.id), "epoch", d.epoch)
			d.expect(first, "a", callback.Routed)
		}},
		"streamed":         {lost: func(d *callbackFixture, first, _, _ calls.WorkItem) { stream(d, first, "a b.", 2, callback.Routed) }},
		"streamed, parked": {lost: func(d *callbackFixture, _, second, _ calls.WorkItem) { stream(d, second, "a b.", 2, callback.Parked) }},
		"end of a stream": {
			kept: func(d *callbackFixture, first, _, _ calls.WorkItem) { stream(d, first, "a b", 2, callback.Routed) },
			lost: func(d *callbackFixture, first, _, _ calls.WorkItem) { stream(d, first, "a b.", 0, callback.Routed) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
			first, second, shared := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
			if c.kept != nil {
				c.kept(d, first, second, shared)
			}
			restore := d.snapshot()
			c.lost(d, first, second, shared)
			restore()

			d.raw(func(ctx context.Context, client rueidis.Client) error { // it becomes a replica, and a master with another replication ID
				for _, reply := range client.DoMulti(ctx, client.B().Replicaof().Host("127.0.0.1").Port(1).Build(), client.B().Replicaof().No().One().Build()) {
					if reply.Error() != nil {
						return reply.Error()
					}
				}
				return nil
			})
			testkit.Until(t, "the loss is reported", func() bool { return errors.Is(d.Cancel(t.Context(), "other"), calls.ErrLost) })
		})
	}
}

// A failover can last longer than the work item of the lost callback. The runtime has got a
// timeout, although the provider has answered.
func TestLostCallbackOfExpiredItemIsReported(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	item := d.await(calls.AwaitOptions{})
	restore := d.snapshot()
	d.expect(item, "a", callback.Routed)
	restore()
	past, digest := time.Now().Add(-time.Second), d.delivery(item, "").Digest
	deadline := fmt.Sprint(item.ExpiresAt.UnixMilli())
	d.do("HSET", kv.WorkKey(d.id), digest, strings.Replace(d.field(kv.WorkKey(d.id), digest), deadline, fmt.Sprint(past.UnixMilli()), 1))
	d.setFirstDeadline(past)
	must(t, d.store.checkAccepted(t.Context()))
	wantError(t, "cancel", d.Cancel(t.Context(), "other"), calls.ErrLost)
}

// A callback that the store has is not reported.
func TestKeptCallbackIsNotReported(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	first, second, third := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	d.expect(first, "first", callback.Routed)
	d.expect(third, "third", callback.Parked)
	d.expect(d.await(calls.AwaitOptions{Scope: wire.ScopeChannel}), "shared", callback.Routed)
	for _, text := range []string{"a", "a b."} { // while it arrives, its provider knows what is missing
		_, err := d.callbacks.DeliverStream(t.Context(), d.streamed(d.await(calls.AwaitOptions{}), text, 1+len(text)/4))
		must(t, err)
	}
	must(t, d.store.checkAccepted(t.Context()))
	must(t, d.Cancel(t.Context(), second.ID))
	must(t, d.store.checkAccepted(t.Context()))
	wantError(t, "cancel", d.Cancel(t.Context(), "other"), calls.ErrWorkItemNotFound)
}
