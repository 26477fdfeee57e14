package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/kv"
)

// callbackTests run on every engine.
var callbackTests = map[string]func(*testing.T, Options){
	"credential checks": credentialChecks,
	"callbacks are routed in the order of work items":     callbackOrder,
	"work items time out":                                 workItemTimeouts,
	"cancelled work items are skipped":                    cancellations,
	"one of several concurrent duplicates is routed":      concurrentCallbacks,
	"parked callbacks are routed before the channel ends": endWithParked,
	"retried callbacks have the same outcome":             retriedCallbacks,
	"callbacks can be retried after backpressure":         callbackBackpressure,
	"channel credentials can be used repeatedly":          channelCredentials,
	"digests are kept for an hour, tokens never":          retention,
	"callbacks reset the idle timeout":                    callbacksResetIdleTimeout,
}

// callbackFixture is a channel with a runtime that awaits work items.
type callbackFixture struct {
	*channelFixture
	*calls.Channel
	callbacks *Callbacks
	epoch     string
}

func newCallbackFixture(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *callbackFixture {
	t.Helper()
	s := newChannelFixture(t, opts, change)
	c, err := s.runtime("r").Open(t.Context(), calls.OpenOptions{ChannelID: s.id, TeamID: "team", EndpointID: "endpoint", CallID: "call",
		TransactionID: "transaction", Profile: []byte(`{"commandSources":["bot"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	d := &callbackFixture{s, c, NewCallbacks(s.store), ""}
	known, err := d.callbacks.Channel(t.Context(), s.id)
	if err != nil || known.Epoch == "" || string(known.Profile) != string(c.Profile) || known.CallID != "call" || known.TransactionID != "transaction" {
		t.Fatalf("channel: %+v, %v, want the data of %+v", known, err, c)
	}
	d.epoch = known.Epoch
	return d
}

func (d *callbackFixture) await(o calls.AwaitOptions) calls.WorkItem {
	d.channelFixture.Helper()
	item, err := d.Await(d.Context(), o)
	if err != nil {
		d.Fatal(err)
	}
	return item
}

// delivery returns a callback for a work item. Its two entries are named after the body.
func (d *callbackFixture) delivery(item calls.WorkItem, body string) callback.DeliverParams {
	digest := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	params := callback.DeliverParams{
		Credential: callback.Credential{ChannelID: d.id, Kind: item.Kind, Digest: digest(item.Token)},
		CallbackID: uuid.NewString(), BodyDigest: digest(body), DuplicateFor: 24 * time.Hour, Epoch: d.epoch,
		Entries: [][]byte{d.entry(wire.KindBotEvent, body), d.entry(wire.KindBotEvent, body+"'")}, Receipt: []byte(`{"of": "` + body + `"}`), Park: true,
	}
	if item.Kind != wire.BotItem {
		params.WorkItemID = item.ID
	}
	return params
}

func (d *callbackFixture) deliver(c callback.DeliverParams) (callback.Status, string) {
	d.channelFixture.Helper()
	o, err := d.callbacks.Deliver(d.Context(), c)
	if err != nil {
		d.Errorf("deliver: %v", err)
	}
	return o.Status, string(o.Receipt)
}

func (d *callbackFixture) expect(item calls.WorkItem, body string, want callback.Status) {
	d.channelFixture.Helper()
	if got, _ := d.deliver(d.delivery(item, body)); got != want {
		d.Errorf("%s: %s, want %s", body, got, want)
	}
}

func (d *callbackFixture) raw(operate func(context.Context, rueidis.Client) error) {
	d.channelFixture.raw(operate)
}

// events returns the events on the runtime stream, without the second entry of each
// callback.
func (d *callbackFixture) events() string {
	d.channelFixture.Helper()
	entries, err := d.runtime("observer").Entries(d.Context(), d.id, "", 10_000)
	if err != nil {
		d.Fatal(err)
	}
	var all []string
	for i, e := range entries {
		switch name := e.Entry.Event + e.Entry.Reason; {
		case e.Entry.Kind == wire.KindTimeout:
			all = append(all, "timeout:"+e.Entry.WorkItemID)
		case !strings.HasSuffix(name, "'"):
			all = append(all, name)
		case i == 0 || entries[i-1].Entry.Event+"'" != name || entries[i-1].Entry.WorkItemID != e.Entry.WorkItemID:
			d.Errorf("%s does not follow its first entry", name)
		}
	}
	return strings.Join(all, " ")
}

// forgetKey returns the key of the times at which fields of work are deleted.
func forgetKey(channelID string) string { return kv.ChannelKeys(channelID)[6] }

// expectNothingParked checks that the size of parked callbacks is 0.
func (d *callbackFixture) expectNothingParked() {
	d.channelFixture.Helper()
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		queue, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(d.id)).Field("queue").Build()).ToString()
		if !strings.HasSuffix(queue, " 0") {
			d.Errorf("queue: %s, want 0 parked bytes at the end", queue)
		}
		return err
	})
}

// expectPending checks which of the channel's work items are awaited or parked.
// want[n] is for item n.
func (d *callbackFixture) expectPending(want ...bool) {
	d.channelFixture.Helper()
	items := make([]callback.ParkedItem, len(want))
	for n := range items {
		items[n] = callback.ParkedItem{ChannelID: d.id, Number: int64(n)}
	}
	if got, err := d.callbacks.StillParked(d.Context(), items); err != nil || !slices.Equal(got, want) {
		d.Errorf("pending items: %v, %v, want %v", got, err, want)
	}
}

func credentialChecks(t *testing.T, opts Options) {
	d, other := newCallbackFixture(t, opts, nil), newCallbackFixture(t, opts, nil)
	cases := []struct {
		name    string
		kind    wire.WorkItemKind
		prepare func(*callback.DeliverParams, calls.WorkItem)
		want    callback.Status
	}{
		{"bot", wire.BotItem, nil, callback.Routed},
		{"LLM", wire.LLMItem, nil, callback.Routed},
		{"tool", wire.ToolItem, nil, callback.Routed},
		{"unknown digest", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Digest = strings.Repeat("0", 64) }, callback.Invalid},
		{"empty digest", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Digest = "" }, callback.Invalid},
		{"name of another hash field", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) { c.Digest = "@" + i.ID }, callback.Invalid},
		{"other channel", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.ChannelID = other.id }, callback.Invalid},
		{"unknown channel", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.ChannelID = uuid.NewString() }, callback.Invalid},
		{"other kind", wire.LLMItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Kind = wire.ToolItem }, callback.Invalid},
		{"LLM credential on the bot path", wire.LLMItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Kind, c.WorkItemID = wire.BotItem, "" }, callback.Invalid},
		{"other work item", wire.ToolItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.WorkItemID = "other" }, callback.Invalid},
		{"consumed", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) { d.expect(i, "first", callback.Routed) }, callback.Consumed},
		{"consumed with the same body", wire.BotItem, func(c *callback.DeliverParams, i calls.WorkItem) {
			d.expect(i, "consumed with the same body", callback.Routed)
			c.DuplicateFor = 0
		}, callback.Duplicate},
		{"cancelled", wire.LLMItem, func(_ *callback.DeliverParams, i calls.WorkItem) {
			if err := d.Cancel(t.Context(), i.ID); err != nil {
				t.Error(err)
			}
		}, callback.Cancelled},
		{"other epoch", wire.BotItem, func(c *callback.DeliverParams, _ calls.WorkItem) { c.Epoch = other.epoch }, callback.Stale},
	}
	for _, c := range cases {
		item := d.await(calls.AwaitOptions{Kind: c.kind})
		delivery := d.delivery(item, c.name)
		if c.prepare != nil {
			c.prepare(&delivery, item)
		}
		got, receipt := d.deliver(delivery)
		if first := strings.Contains(receipt, "of"); got != c.want || first != (got == callback.Routed || got == callback.Consumed || got == callback.Duplicate) {
			t.Errorf("%s: %s, receipt %s, want %s", c.name, got, receipt, c.want)
		}
		_ = d.Cancel(t.Context(), item.ID) // so that the next item is not parked
	}
	expiring := d.await(calls.AwaitOptions{TTL: shortTTL})
	d.waitExpired(expiring)
	d.expect(expiring, "late", callback.Invalid)

	used, cancelled, open := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	if status, err := d.callbacks.CheckCredential(t.Context(), d.delivery(used, "").Credential); status != callback.Usable || err != nil {
		t.Errorf("unused credential: %s, %v, want %s", status, err, callback.Usable)
	}
	d.expect(used, "used", callback.Routed)
	if err := errors.Join(d.Cancel(t.Context(), cancelled.ID), d.End(t.Context(), "done")); err != nil {
		t.Fatal(err)
	}
	for _, item := range []calls.WorkItem{used, cancelled, open} {
		d.expect(item, "used", callback.Ended)
	}
	d.expect(expiring, "late", callback.Invalid)
	if _, err := d.Await(t.Context(), calls.AwaitOptions{}); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("await on an ended channel: %v, want ErrEnded", err)
	}
	if _, err := d.callbacks.Channel(t.Context(), uuid.NewString()); !errors.Is(err, callback.ErrChannelNotFound) {
		t.Errorf("unknown channel: %v, want ErrChannelNotFound", err)
	}
}
