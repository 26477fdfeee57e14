package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/kv"
)

// callbackPromises are kept by every engine.
var callbackPromises = map[string]func(*testing.T, Options){
	"every credential gets its verdict":                    verdicts,
	"answers are received in the order of their items":     answersInOrder,
	"an item that never comes is skipped after its time":   workItemTimeouts,
	"an item that was cancelled is waited for no more":     cancellations,
	"of simultaneous callbacks one is routed":              simultaneous,
	"the end comes after what was answered":                endWithParked,
	"a callback that is repeated has the same outcome":     lostReplies,
	"a refusal for the time being changes nothing":         temporaryRefusals,
	"a channel's credential is good for any number":        channelCredentials,
	"credentials are remembered for an hour, and no token": retention,
	"callbacks keep a channel open":                        busyChannel,
}

// callbackFixture is where work items are awaited and answered.
type callbackFixture struct {
	*channelFixture
	*callruntime.Channel
	callbacks *Callbacks
	epoch     string
}

func newCallbackFixture(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *callbackFixture {
	t.Helper()
	s := newChannelFixture(t, opts, change)
	c, err := s.runtime("r").Open(t.Context(), callruntime.OpenOptions{ChannelID: s.id, TeamID: "team", EndpointID: "endpoint", CallID: "call",
		TransactionID: "transaction", Profile: []byte(`{"commandSources":["bot"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	d := &callbackFixture{s, c, NewCallbacks(s.store), ""}
	known, err := d.callbacks.Channel(t.Context(), s.id)
	if err != nil || known.Epoch == "" || string(known.Profile) != string(c.Profile) || known.CallID != "call" || known.TransactionID != "transaction" {
		t.Fatalf("channel: %+v, %v", known, err)
	}
	d.epoch = known.Epoch
	return d
}

func (d *callbackFixture) await(o callruntime.AwaitOptions) callruntime.WorkItem {
	d.channelFixture.Helper()
	item, err := d.Await(d.Context(), o)
	if err != nil {
		d.Fatal(err)
	}
	return item
}

// delivery answers an item with entries that are named after the body.
func (d *callbackFixture) delivery(item callruntime.WorkItem, body string) callback.DeliverParams {
	digest := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	made := callback.DeliverParams{
		Credential: callback.Credential{ChannelID: d.id, Kind: item.Kind, Digest: digest(item.Token)},
		CallbackID: uuid.NewString(), BodyDigest: digest(body), Deduplicate: true, Epoch: d.epoch,
		Entries: [][]byte{d.entry(wire.KindBotEvent, body), d.entry(wire.KindBotEvent, body+"'")}, Receipt: []byte(`{"of": "` + body + `"}`),
	}
	if item.Kind != wire.BotItem {
		made.WorkItemID = item.ID
	}
	return made
}

func (d *callbackFixture) deliver(c callback.DeliverParams) (callback.Status, string) {
	d.channelFixture.Helper()
	o, err := d.callbacks.Deliver(d.Context(), c)
	if err != nil {
		d.Errorf("deliver: %v", err)
	}
	return o.Status, string(o.Receipt)
}

func (d *callbackFixture) expect(item callruntime.WorkItem, body string, want callback.Status) {
	d.channelFixture.Helper()
	if got, _ := d.deliver(d.delivery(item, body)); got != want {
		d.Errorf("%s: %s, want %s", body, got, want)
	}
}

func (d *callbackFixture) raw(operate func(context.Context, rueidis.Client) error) {
	d.channelFixture.raw(operate)
}

// recorded returns the entries on the stream, without the second entry of each body.
func (d *callbackFixture) recorded() string {
	d.channelFixture.Helper()
	entries, err := d.runtime("looker").Entries(d.Context(), d.id, "", 10_000)
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

// nothingParked sees that what came early is no longer counted as kept.
func (d *callbackFixture) nothingParked() {
	d.channelFixture.Helper()
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		queue, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(d.id)).Field("queue").Build()).ToString()
		if !strings.HasSuffix(queue, " 0") {
			d.Errorf("the queue is %s", queue)
		}
		return err
	})
}

// waiting sees which of the channel's items have not had their turn, by their
// numbers from 0 on.
func (d *callbackFixture) waiting(want ...bool) {
	d.channelFixture.Helper()
	turns := make([]callback.ParkedItem, len(want))
	for n := range turns {
		turns[n] = callback.ParkedItem{ChannelID: d.id, Number: int64(n)}
	}
	if got, err := d.callbacks.StillParked(d.Context(), turns); err != nil || !slices.Equal(got, want) {
		d.Errorf("waiting are %v, %v, want %v", got, err, want)
	}
}

func verdicts(t *testing.T, opts Options) {
	d, other := newCallbackFixture(t, opts, nil), newCallbackFixture(t, opts, nil)
	cases := []struct {
		name    string
		kind    wire.WorkItemKind
		prepare func(*callback.DeliverParams, callruntime.WorkItem)
		want    callback.Status
	}{
		{"a good one", wire.BotItem, nil, callback.Routed},
		{"a good one of a model", wire.LLMItem, nil, callback.Routed},
		{"a good one of a tool", wire.ToolItem, nil, callback.Routed},
		{"an unknown one", wire.BotItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.Digest = strings.Repeat("0", 64) }, callback.Invalid},
		{"none", wire.BotItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.Digest = "" }, callback.Invalid},
		{"the name of another field", wire.BotItem, func(c *callback.DeliverParams, i callruntime.WorkItem) { c.Digest = "@" + i.ID }, callback.Invalid},
		{"another channel's", wire.BotItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.ChannelID = other.id }, callback.Invalid},
		{"one for no channel", wire.BotItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.ChannelID = uuid.NewString() }, callback.Invalid},
		{"another kind's", wire.LLMItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.Kind = wire.ToolItem }, callback.Invalid},
		{"a model's on the bots' path", wire.LLMItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.Kind, c.WorkItemID = wire.BotItem, "" }, callback.Invalid},
		{"another item's", wire.ToolItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.WorkItemID = "other" }, callback.Invalid},
		{"one that was used", wire.BotItem, func(c *callback.DeliverParams, i callruntime.WorkItem) { d.expect(i, "first", callback.Routed) }, callback.Consumed},
		{"one that was used for the same", wire.BotItem, func(c *callback.DeliverParams, i callruntime.WorkItem) {
			d.expect(i, "one that was used for the same", callback.Routed)
			c.Deduplicate = false
		}, callback.Duplicate},
		{"a cancelled one", wire.LLMItem, func(_ *callback.DeliverParams, i callruntime.WorkItem) {
			if err := d.Cancel(t.Context(), i.ID); err != nil {
				t.Error(err)
			}
		}, callback.Cancelled},
		{"one for another life", wire.BotItem, func(c *callback.DeliverParams, _ callruntime.WorkItem) { c.Epoch = other.epoch }, callback.Stale},
	}
	for _, c := range cases {
		item := d.await(callruntime.AwaitOptions{Kind: c.kind})
		delivery := d.delivery(item, c.name)
		if c.prepare != nil {
			c.prepare(&delivery, item)
		}
		got, receipt := d.deliver(delivery)
		if first := strings.Contains(receipt, "of"); got != c.want || first != (got == callback.Routed || got == callback.Consumed || got == callback.Duplicate) {
			t.Errorf("%s: %s with %s, want %s", c.name, got, receipt, c.want)
		}
		_ = d.Cancel(t.Context(), item.ID) // so that the next need not wait for it
	}
	brief := d.await(callruntime.AwaitOptions{TTL: briefly})
	d.over(brief)
	d.expect(brief, "late", callback.Invalid)

	used, cancelled, open := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	if valid, err := d.callbacks.CheckCredential(t.Context(), d.delivery(used, "").Credential); !valid || err != nil {
		t.Errorf("unused credential: valid %t, %v", valid, err)
	}
	d.expect(used, "used", callback.Routed)
	if err := errors.Join(d.Cancel(t.Context(), cancelled.ID), d.End(t.Context(), "done")); err != nil {
		t.Fatal(err)
	}
	for _, item := range []callruntime.WorkItem{used, cancelled, open} {
		d.expect(item, "used", callback.Ended)
	}
	d.expect(brief, "late", callback.Invalid)
	if _, err := d.Await(t.Context(), callruntime.AwaitOptions{}); !errors.Is(err, callruntime.ErrEnded) {
		t.Errorf("await on what has ended: %v", err)
	}
	if _, err := d.callbacks.Channel(t.Context(), uuid.NewString()); !errors.Is(err, callback.ErrChannelNotFound) {
		t.Errorf("a channel that is none: %v", err)
	}
}
