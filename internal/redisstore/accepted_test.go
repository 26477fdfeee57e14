package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
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
	d.do("HSET", kv.MetaKey(d.id), digest, strings.Replace(d.field(kv.MetaKey(d.id), digest), deadline, fmt.Sprint(past.UnixMilli()), 1))
	d.setFirstDeadline(past)
	testkit.Must(t, d.store.checkAccepted(t.Context()))
	testkit.WantError(t, "cancel", d.Cancel(t.Context(), "other"), calls.ErrLost)
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
		testkit.Must(t, testkit.ErrorOf(d.callbacks.DeliverStream(t.Context(), d.streamed(d.await(calls.AwaitOptions{}), text, 1+len(text)/4))))
	}
	testkit.Must(t, d.store.checkAccepted(t.Context()))
	testkit.Must(t, d.Cancel(t.Context(), second.ID))
	testkit.Must(t, d.store.checkAccepted(t.Context()))
	testkit.WantError(t, "cancel", d.Cancel(t.Context(), "other"), calls.ErrWorkItemNotFound)

	// An item that waits for its callback is lost only in the epoch of the callback, and while the channel is open.
	digest, epoch := d.delivery(d.await(calls.AwaitOptions{}), "").Digest, d.epoch
	d.setField("epoch", d.epoch+fmt.Sprint(time.Now().UnixMilli()))
	testkit.Equal(t, "check after the report of another loss", d.script("check_callback", digest, epoch, "")[0], "kept")
	d.setField("epoch", strings.Repeat("x", len(epoch)))
	testkit.Equal(t, "check after the channel was opened again", d.script("check_callback", digest, epoch, "")[0], "kept")
	d.setField("epoch", epoch)
	testkit.Must(t, d.End(t.Context(), "done"))
	testkit.Equal(t, "check after the end", d.script("check_callback", digest, epoch, "")[0], "kept")
}

// A channel remembers a limited number of settled work items.
func TestForgottenCallbackIsNotReported(t *testing.T) {
	t.Parallel()
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	item := d.await(calls.AwaitOptions{})
	d.expect(item, "first", callback.Routed)
	d.do("HSET", kv.MetaKey(d.id), "queue", "1026 1025 0") // so many were settled since
	d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})  // looks for fields that are not needed any more
	d.expect(item, "first", callback.Invalid)
	testkit.Must(t, d.store.checkAccepted(t.Context()))
	testkit.WantError(t, "cancel", d.Cancel(t.Context(), "other"), calls.ErrWorkItemNotFound)
}

// streamed returns the delivery of the newest parts of a streamed answer. A part's digest
// is its text, padded to 8 characters. The texts after a dot are those of the last line.
func (d *callbackFixture) streamed(item calls.WorkItem, text string, newest int) callback.StreamParams {
	body, last, ended := strings.Cut(text, ".")
	plain := d.delivery(item, text)
	p := callback.StreamParams{Credential: plain.Credential, CallbackID: uuid.NewString(), Epoch: d.epoch, Park: true, Digests: "+"}
	parts := strings.Fields(body)
	for i, part := range parts {
		p.Digests += fmt.Sprintf("%-8s", part)[:8]
		if i >= len(parts)-newest {
			p.Parts = append(p.Parts, d.entry(wire.KindBotEvent, part))
		}
	}
	p.Digests = strings.ReplaceAll(p.Digests, " ", "_")
	if ended {
		p.Digests += "." + last
		p.Last, p.Receipt = [][]byte{d.entry(wire.KindBotEvent, "end"+last)}, []byte(`{"of": "`+text+`"}`)
	}
	return p
}

// A provider can send all parts of its answer at once.
func mostParts(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	for _, want := range []callback.Status{callback.Parked, callback.Routed} {
		first, second := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Kind: wire.LLMItem})
		if want == callback.Routed {
			testkit.Must(t, d.Cancel(t.Context(), first.ID))
		}
		result, err := d.callbacks.DeliverStream(t.Context(), d.streamed(second, strings.Repeat("part ", callback.MaxParts)+".", callback.MaxParts))
		if err != nil || result.Status != want {
			t.Errorf("%d parts: %s, %v, want %s", callback.MaxParts, result.Status, err, want)
		}
		if want == callback.Parked {
			testkit.Must(t, d.Cancel(t.Context(), first.ID)) // routes the parts
		}
	}
	testkit.Equal(t, "parts on the stream", strings.Count(d.events(), "part"), 2*callback.MaxParts)
}

func streamedAnswers(t *testing.T, opts Options) {
	type step struct {
		item   int
		text   string // all parts so far; a dot starts the last line. Empty: see call
		newest int    // parts in this call
		want   callback.Status
		call   func(*callbackFixture, []calls.WorkItem)
	}
	run := func(call func(*callbackFixture, []calls.WorkItem)) step { return step{call: call} }
	cancel := func(item int) step {
		return run(func(d *callbackFixture, items []calls.WorkItem) {
			testkit.Must(d, d.Cancel(d.Context(), items[item].ID))
		})
	}
	plain := func(item int, body string, want callback.Status) step {
		return run(func(d *callbackFixture, items []calls.WorkItem) { d.expect(items[item], body, want) })
	}
	for name, c := range map[string]struct {
		steps []step
		want  string
	}{
		"parts and the last line": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a b c.", 1, callback.Routed, nil}}, "a b c end"},
		"all at once":             {[]step{{0, "a b c.", 3, callback.Routed, nil}, plain(1, "p", callback.Routed)}, "a b c end p"},
		"nothing but the end":     {[]step{{0, ".", 0, callback.Routed, nil}}, "end"},
		"repeated after a break": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a", 1, callback.Routed, nil},
			{0, "a b c", 2, callback.Routed, nil}, {0, "a b c d.", 1, callback.Routed, nil}}, "a b c d end"},
		"other text":                {[]step{{0, "a b", 2, callback.Routed, nil}, {0, "a x", 2, callback.Streaming, nil}, {0, "a.", 1, callback.Streaming, nil}, {0, "a b.", 0, callback.Routed, nil}}, "a b end"},
		"two streams with one text": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 2, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a b.", 0, callback.Routed, nil}, {0, "a b.", 0, callback.Duplicate, nil}}, "a b end"},
		"repeated after the end": {[]step{{0, "a b.", 2, callback.Routed, nil}, {0, "a", 1, callback.Routed, nil}, {0, "x", 1, callback.Consumed, nil}, {0, "a b.", 1, callback.Duplicate, nil},
			{0, "a b.z", 1, callback.Consumed, nil}, {0, "a b c", 1, callback.Consumed, nil}}, "a b end"},
		"missing parts":              {[]step{{0, "a b c", 1, callback.Missing, nil}, {0, "a b c.", 2, callback.Missing, nil}, {0, "a b c.", 3, callback.Routed, nil}}, "a b c end"},
		"plain after a part":         {[]step{{0, "a", 1, callback.Routed, nil}, plain(0, "p", callback.Streaming), {0, "a.", 0, callback.Routed, nil}, plain(0, "p", callback.Consumed)}, "a end"},
		"stream after plain":         {[]step{plain(0, "p", callback.Routed), {0, "a", 1, callback.Consumed, nil}}, "p"},
		"parked until its turn":      {[]step{{1, "a", 1, callback.Parked, nil}, {1, "a b", 1, callback.Parked, nil}, plain(0, "p", callback.Routed), {1, "a b c", 1, callback.Routed, nil}, {1, "a b c.", 0, callback.Routed, nil}}, "p a b c end"},
		"parked to its end":          {[]step{{1, "a", 1, callback.Parked, nil}, {1, "a b.", 1, callback.Parked, nil}, {1, "a b.", 2, callback.Duplicate, nil}, plain(0, "p", callback.Routed)}, "p a b end"},
		"two parked streams":         {[]step{{2, "x", 1, callback.Parked, nil}, {1, "a", 1, callback.Parked, nil}, {2, "x y.", 1, callback.Parked, nil}, {0, "p.", 1, callback.Routed, nil}, {1, "a b.", 1, callback.Routed, nil}}, "p end a b end x y end"},
		"cancelled":                  {[]step{{0, "a", 1, callback.Routed, nil}, cancel(0), {0, "a b", 1, callback.Cancelled, nil}, plain(1, "p", callback.Routed)}, "a p"},
		"cancelled while parked":     {[]step{{1, "a b", 2, callback.Parked, nil}, {2, "x y.", 2, callback.Parked, nil}, cancel(1), cancel(2), plain(0, "p", callback.Routed), {1, "a b c", 1, callback.Cancelled, nil}}, "p"},
		"released by a cancellation": {[]step{{1, "a", 1, callback.Parked, nil}, cancel(0), {1, "a b.", 1, callback.Routed, nil}}, "a b end"},
		"end of the channel": {[]step{{1, "a b", 2, callback.Parked, nil}, run(func(d *callbackFixture, _ []calls.WorkItem) { testkit.Must(d, d.End(d.Context(), "done")) }),
			{1, "a b c", 1, callback.Ended, nil}}, "a b done"},
		"deadline": {[]step{{0, "a", 1, callback.Routed, nil}, {1, "x", 1, callback.Parked, nil}, run(func(d *callbackFixture, _ []calls.WorkItem) {
			d.setFirstDeadline(time.Now())
			d.script("touch")
		}), {0, "a b", 1, callback.Invalid, nil}, {1, "x.", 0, callback.Routed, nil}}, "a timeout:w0 x end"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCallbackFixture(t, opts, nil)
			var items []calls.WorkItem
			for i := range 3 {
				items = append(items, d.await(calls.AwaitOptions{Kind: []wire.WorkItemKind{wire.LLMItem, wire.BotItem, wire.LLMItem}[i], WorkItemID: fmt.Sprint("w", i)}))
			}
			for i, s := range c.steps {
				if s.call != nil {
					s.call(d, items)
					continue
				}
				p := d.streamed(items[s.item], s.text, s.newest)
				if name == "parts and the last line" {
					p.CallbackID = "stream" // one request
				}
				for range 2 { // the reply to the first call may be lost
					got, err := d.callbacks.DeliverStream(t.Context(), p)
					same := got.Status == callback.Routed && s.want == callback.Parked && p.Last == nil // nothing is left to do
					if err != nil || got.Status != s.want && !same {
						t.Fatalf("step %d, %q: %+v, %v, want %s", i+1, s.text, got, err, s.want)
					}
				}
			}
			d.expectEvents(c.want)
			d.expectNothingParked()
		})
	}
}
