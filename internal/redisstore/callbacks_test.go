package redisstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/kv"
	"telapi/internal/lua"
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

// desk is where work items are awaited and answered.
type desk struct {
	*stage
	*callruntime.Channel
	callbacks *Callbacks
	epoch     string
}

func newDesk(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *desk {
	t.Helper()
	s := newStage(t, opts, change)
	c, err := s.runtime("r").Open(t.Context(), callruntime.OpenOptions{ChannelID: s.id, TeamID: "team", EndpointID: "endpoint", CallID: "call",
		TransactionID: "transaction", Profile: []byte(`{"commandSources":["bot"]}`)})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{s, c, NewCallbacks(s.store), ""}
	known, err := d.callbacks.Channel(t.Context(), s.id)
	if err != nil || known.Epoch == "" || string(known.Profile) != string(c.Profile) || known.CallID != "call" || known.TransactionID != "transaction" {
		t.Fatalf("channel: %+v, %v", known, err)
	}
	d.epoch = known.Epoch
	return d
}

func (d *desk) await(o callruntime.AwaitOptions) callruntime.WorkItem {
	d.stage.Helper()
	item, err := d.Await(d.Context(), o)
	if err != nil {
		d.Fatal(err)
	}
	return item
}

// delivery answers an item with entries that are named after the body.
func (d *desk) delivery(item callruntime.WorkItem, body string) callback.DeliverParams {
	digest := func(text string) string { sum := sha256.Sum256([]byte(text)); return hex.EncodeToString(sum[:]) }
	made := callback.DeliverParams{
		Credential: callback.Credential{ChannelID: d.id, Kind: wire.WorkItemKind(item.Kind), Digest: digest(item.Token)},
		CallbackID: uuid.NewString(), BodyDigest: digest(body), Deduplicate: true, Epoch: d.epoch,
		Entries: [][]byte{d.entry(wire.KindBotEvent, body), d.entry(wire.KindBotEvent, body+"'")}, Receipt: []byte(`{"of": "` + body + `"}`),
	}
	if item.Kind != wire.BotItem {
		made.WorkItemID = item.ID
	}
	return made
}

func (d *desk) deliver(c callback.DeliverParams) (callback.Status, string) {
	d.stage.Helper()
	o, err := d.callbacks.Deliver(d.Context(), c)
	if err != nil {
		d.Errorf("deliver: %v", err)
	}
	return o.Status, string(o.Receipt)
}

func (d *desk) expect(item callruntime.WorkItem, body string, want callback.Status) {
	d.stage.Helper()
	if got, _ := d.deliver(d.delivery(item, body)); got != want {
		d.Errorf("%s: %s, want %s", body, got, want)
	}
}

func (d *desk) raw(operate func(context.Context, rueidis.Client) error) { d.stage.raw(operate) }

// story is what is on the stream, without the second entry of each body.
func (d *desk) story() string {
	d.stage.Helper()
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
func (d *desk) nothingParked() {
	d.stage.Helper()
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
func (d *desk) waiting(want ...bool) {
	d.stage.Helper()
	turns := make([]callback.ParkedItem, len(want))
	for n := range turns {
		turns[n] = callback.ParkedItem{ChannelID: d.id, Number: int64(n)}
	}
	if got, err := d.callbacks.StillParked(d.Context(), turns); err != nil || !slices.Equal(got, want) {
		d.Errorf("waiting are %v, %v, want %v", got, err, want)
	}
}

const briefly = 50 * time.Millisecond

// over waits until an item is over its time.
func (d *desk) over(item callruntime.WorkItem) {
	d.stage.Helper()
	eventually(d.T, "the end of its time", func() bool {
		valid, err := d.callbacks.CheckCredential(d.Context(), d.delivery(item, "").Credential)
		return !valid && err == nil
	})
	d.raw(func(ctx context.Context, client rueidis.Client) error { // a check alone changes nothing
		return rueidis.NewLuaScript(lua.Channel("touch")).Exec(ctx, client, kv.ChannelKeys(d.id), nil).Error()
	})
}

func verdicts(t *testing.T, opts Options) {
	d, other := newDesk(t, opts, nil), newDesk(t, opts, nil)
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

func answersInOrder(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	other, _ := connect(t, opts)
	instances := []*Callbacks{d.callbacks, wholeCallbacks(other)}
	const items, workers = 200, 16
	var want []string
	var posts []callback.DeliverParams
	for i := range items {
		kind := []wire.WorkItemKind{wire.BotItem, wire.LLMItem, wire.ToolItem}[i%3]
		item := d.await(callruntime.AwaitOptions{Kind: kind, WorkItemID: fmt.Sprint("w", i)})
		if want = append(want, fmt.Sprint(i)); item.Kind != kind || item.ID != fmt.Sprint("w", i) {
			t.Fatalf("awaited %+v", item)
		}
		posts = append(posts, d.delivery(item, fmt.Sprint(i)))
	}
	rand.Shuffle(items, func(i, j int) { posts[i], posts[j] = posts[j], posts[i] })
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < items; i += workers {
				if o, err := instances[i%2].Deliver(t.Context(), posts[i]); err != nil || o.Status != callback.Routed && o.Status != callback.Parked {
					t.Errorf("deliver: %+v, %v", o, err)
				}
			}
		})
	}
	wg.Wait()
	if got := d.story(); got != strings.Join(want, " ") {
		t.Errorf("the runtime sees %s", got)
	}
	d.nothingParked()
	for i := range items * 2 {
		got, err := d.Receive(t.Context())
		if err != nil || got.Entry.WorkItemID != fmt.Sprint("w", i/2) && (i/2)%3 == 0 { // a bot's path does not name it
			t.Fatalf("entry %d: %+v, %v", i, got.Entry, err)
		}
	}
}

func workItemTimeouts(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	t.Run("while the runtime receives", func(t *testing.T) {
		first := d.await(callruntime.AwaitOptions{WorkItemID: "never", Kind: wire.ToolItem, TTL: 60 * briefly})
		second, third := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
		d.expect(third, "third", callback.Parked)
		d.expect(second, "second", callback.Parked)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var got []callruntime.Delivery
		for range 5 {
			r, err := d.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r)
		}
		if e := got[0].Entry; e.Kind != wire.KindTimeout || e.WorkItemID != "never" || e.WorkItemKind != "tool" || e.ChannelID != d.id || e.At == 0 || e.Trace.CallID != "call" {
			t.Errorf("the time-out: %+v", e)
		}
		if got[1].Entry.Event != "second" || got[3].Entry.Event != "third" {
			t.Errorf("behind it: %+v", got)
		}
		for _, r := range got {
			if at, _, _ := strings.Cut(got[0].Position, "-"); at == "" || r.Position[strings.Index(r.Position, "-"):] != got[0].Position[strings.Index(got[0].Position, "-"):] {
				t.Errorf("%s came at another time than %s", r.Position, got[0].Position)
			}
		}
		if at, _ := strconv.ParseInt(got[0].Position[strings.Index(got[0].Position, "-")+1:], 10, 64); at < first.ExpiresAt.UnixMilli() {
			t.Errorf("skipped at %d, before %d", at, first.ExpiresAt.UnixMilli())
		}
		d.expect(first, "late", callback.Invalid)
	})
	t.Run("of an operator's item, while the runtime waits", func(t *testing.T) {
		received := make(chan callruntime.Delivery, 1)
		go func() { r, _ := d.Receive(t.Context()); received <- r }()
		operator := d.runtime("operator").Observe(d.id, "")
		item, err := operator.Await(t.Context(), callruntime.AwaitOptions{TTL: briefly})
		if err != nil {
			t.Fatal(err)
		}
		if r := <-received; r.Entry.WorkItemID != item.ID || r.Entry.Kind != wire.KindTimeout {
			t.Errorf("received %+v", r)
		}
	})
	t.Run("behind one that is still awaited", func(t *testing.T) {
		d := newDesk(t, opts, nil)
		head, brief := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{TTL: briefly, WorkItemID: "brief"})
		last := d.await(callruntime.AwaitOptions{})
		d.over(brief)
		d.expect(brief, "late", callback.Invalid)
		if err := d.Cancel(t.Context(), brief.ID); !errors.Is(err, callruntime.ErrWorkItemNotFound) {
			t.Errorf("cancel: %v", err)
		}
		d.expect(last, "last", callback.Parked)
		if got := d.story(); got != "" {
			t.Errorf("too early: %s", got)
		}
		d.expect(head, "head", callback.Routed)
		if got := d.story(); got != "head timeout:brief last" {
			t.Errorf("the runtime sees %s", got)
		}
	})
	t.Run("by whatever else happens", func(t *testing.T) {
		d := newDesk(t, opts, nil)
		brief := d.await(callruntime.AwaitOptions{TTL: briefly, WorkItemID: "brief"})
		eventually(t, "the end of its time", func() bool { return time.Now().After(brief.ExpiresAt.Add(time.Millisecond)) })
		d.attach("a")
		if got := d.story(); got != "timeout:brief connected" {
			t.Errorf("the runtime sees %s", got)
		}
	})
	t.Run("by its own answer, which is late", func(t *testing.T) {
		d := newDesk(t, opts, nil)
		d.expect(d.await(callruntime.AwaitOptions{}), "first", callback.Routed)
		brief := d.await(callruntime.AwaitOptions{TTL: briefly, WorkItemID: "brief"})
		eventually(t, "the end of its time", func() bool { return time.Now().After(brief.ExpiresAt.Add(time.Millisecond)) })
		d.expect(brief, "late", callback.Invalid)
		if got := d.story(); got != "first timeout:brief" {
			t.Errorf("the runtime sees %s", got)
		}
	})
	t.Run("for good, though the store's clock goes back", func(t *testing.T) {
		d := newDesk(t, opts, nil)
		brief := d.await(callruntime.AwaitOptions{TTL: briefly, WorkItemID: "brief"})
		d.over(brief)
		d.raw(func(ctx context.Context, client rueidis.Client) error { // as if its time were still to come
			work, digest := kv.ChannelKeys(d.id)[5], d.delivery(brief, "").Digest
			later := fmt.Sprintf("awaiting 1 bot %d brief   ", brief.ExpiresAt.Add(time.Hour).UnixMilli())
			return client.Do(ctx, client.B().Hset().Key(work).FieldValue().FieldValue(digest, later).Build()).Error()
		})
		d.expect(brief, "late", callback.Invalid)
		if valid, err := d.callbacks.CheckCredential(t.Context(), d.delivery(brief, "").Credential); valid || err != nil {
			t.Errorf("credential: valid %t, %v", valid, err)
		}
		if err := d.Cancel(t.Context(), brief.ID); !errors.Is(err, callruntime.ErrWorkItemNotFound) {
			t.Errorf("cancel: %v", err)
		}
		d.expect(d.await(callruntime.AwaitOptions{}), "next", callback.Routed)
		if got := d.story(); got != "timeout:brief next" {
			t.Errorf("the runtime sees %s", got)
		}
		d.nothingParked()
		d.waiting(false, false, false)
	})
}

func cancellations(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	a, b, c := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	e, f := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	d.expect(c, "c", callback.Parked)
	d.expect(e, "e", callback.Parked)
	d.waiting(false, true, true, true, true, true, false)
	operator := d.runtime("operator").Observe(d.id, "")
	for _, cancel := range []error{d.Cancel(t.Context(), b.ID), d.Cancel(t.Context(), e.ID), operator.Cancel(t.Context(), a.ID), d.Cancel(t.Context(), a.ID)} {
		if cancel != nil {
			t.Error(cancel)
		}
	}
	d.expect(f, "f", callback.Routed)
	if got := d.story(); got != "c f" {
		t.Errorf("the runtime sees %s", got)
	}
	d.nothingParked()
	d.waiting(false, false, false, false, false, false, false)
	for _, item := range []callruntime.WorkItem{a, b, e} {
		d.expect(item, "late", callback.Cancelled)
	}
	for _, id := range []string{c.ID, f.ID, "unknown"} {
		if err := d.Cancel(t.Context(), id); !errors.Is(err, callruntime.ErrWorkItemNotFound) {
			t.Errorf("cancel of what is settled: %v", err)
		}
	}
	if _, err := d.Await(t.Context(), callruntime.AwaitOptions{WorkItemID: a.ID}); !errors.Is(err, callruntime.ErrWorkItemExists) {
		t.Errorf("await twice: %v", err)
	}
	for _, bad := range []callruntime.AwaitOptions{{Kind: "mail"}, {Scope: "team"}, {TTL: 25 * time.Hour}, {TTL: -1}, {WorkItemID: "a/b"}} {
		if _, err := d.Await(t.Context(), bad); err == nil {
			t.Errorf("awaited %+v", bad)
		}
	}
}

func simultaneous(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	other, _ := connect(t, opts)
	instances := []*Callbacks{d.callbacks, wholeCallbacks(other)}
	const tokens, each = 500, 5
	var posts []callback.DeliverParams
	var want []string
	for i := range tokens {
		want = append(want, fmt.Sprint(i))
		posts = append(posts, d.delivery(d.await(callruntime.AwaitOptions{}), fmt.Sprint(i)))
	}
	var mu sync.Mutex
	taken := map[callback.Status]int{}
	var wg sync.WaitGroup
	for w := range each {
		wg.Go(func() {
			for _, post := range posts {
				post.CallbackID = uuid.NewString()
				o, err := instances[w%2].Deliver(t.Context(), post)
				if err != nil || string(o.Receipt) != string(post.Receipt) {
					t.Errorf("deliver: %+v, %v", o, err)
				}
				mu.Lock()
				taken[o.Status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if taken[callback.Routed]+taken[callback.Parked] != tokens || taken[callback.Duplicate] != tokens*(each-1) {
		t.Errorf("verdicts: %v", taken)
	}
	if got := d.story(); got != strings.Join(want, " ") {
		t.Errorf("the runtime sees %s", got)
	}
}

func endWithParked(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	d.await(callruntime.AwaitOptions{})
	second, brief := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{TTL: briefly, WorkItemID: "brief"})
	d.await(callruntime.AwaitOptions{})
	last := d.await(callruntime.AwaitOptions{})
	d.expect(last, "last", callback.Parked)
	d.expect(second, "second", callback.Parked)
	d.over(brief)
	for range 2 {
		if err := d.End(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.story(); got != "second timeout:brief last done" {
		t.Errorf("the runtime sees %s", got)
	}
}

func lostReplies(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	first, second := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	whole := d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel})
	plain := d.delivery(whole, "plain")
	plain.Deduplicate = false
	for _, c := range []struct {
		delivery callback.DeliverParams
		want     callback.Status
	}{{d.delivery(second, "second"), callback.Parked}, {d.delivery(first, "first"), callback.Routed}, {d.delivery(whole, "whole"), callback.Routed}, {plain, callback.Routed}} {
		for range 3 {
			o, err := d.callbacks.Deliver(t.Context(), c.delivery)
			if err != nil || o.Status != c.want || string(o.Receipt) != string(c.delivery.Receipt) || (o.Number == 2) != (c.want == callback.Parked) {
				t.Errorf("%s: %+v, %v", c.delivery.Receipt, o, err)
			}
		}
	}
	if err := d.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	if got := d.story(); got != "first second whole plain done" {
		t.Errorf("the runtime sees %s", got)
	}
}

func temporaryRefusals(t *testing.T, opts Options) {
	d := newDesk(t, opts, func(l *wire.ChannelLimits) { l.BacklogBytes = 2000 })
	var items []callruntime.WorkItem
	for range 40 {
		items = append(items, d.await(callruntime.AwaitOptions{}))
	}
	stale := d.delivery(items[0], "0")
	stale.Epoch = "other"
	if v, _ := d.deliver(stale); v != callback.Stale {
		t.Errorf("decided for another life: %s", v)
	}
	refused := 1 // from the second on they are parked, until there is too much of it
	for ; ; refused++ {
		v, _ := d.deliver(d.delivery(items[refused], fmt.Sprint(refused)))
		if v == callback.Backpressure {
			break
		}
		if v != callback.Parked || refused > 30 {
			t.Fatalf("item %d: %s", refused, v)
		}
	}
	d.expect(items[0], "0", callback.Routed) // which lets them go
	d.expect(items[refused], "again", callback.Backpressure)
	if valid, err := d.callbacks.CheckCredential(t.Context(), d.delivery(items[refused], "").Credential); !valid || err != nil {
		t.Errorf("credential: valid %t, %v", valid, err)
	}
	for {
		r, err := d.Receive(t.Context())
		if err == nil {
			err = d.Commit(t.Context(), r.Position)
		}
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := d.deliver(d.delivery(items[refused], "again")); v == callback.Routed {
			break
		}
	}
	if got := d.story(); !strings.HasSuffix(got, fmt.Sprintf(" %d again", refused-1)) {
		t.Errorf("the runtime sees %s", got)
	}

	few := newDesk(t, opts, func(l *wire.ChannelLimits) { l.BacklogEntries = 2 })
	few.expect(few.await(callruntime.AwaitOptions{}), "first", callback.Routed)
	next := few.delivery(few.await(callruntime.AwaitOptions{}), "next")
	for _, instance := range []*Callbacks{few.callbacks, wholeCallbacks(few.store)} {
		if o, err := instance.Deliver(t.Context(), next); err != nil || o.Status != callback.Backpressure {
			t.Errorf("with as many entries as may wait: %+v, %v", o, err)
		}
	}
	r, err := few.Receive(t.Context())
	if err = errors.Join(err, few.Commit(t.Context(), r.Position)); err != nil {
		t.Fatal(err)
	}
	if v, _ := few.deliver(next); v != callback.Routed {
		t.Errorf("with room again: %s", v)
	}
}

func busyChannel(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	first, second := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	third, fourth := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	whole := d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel})
	for _, c := range []struct {
		item callruntime.WorkItem
		body string
		want callback.Status
	}{{first, "1", callback.Routed}, {second, "2", callback.Routed}, {fourth, "4", callback.Parked}, {whole, "5", callback.Routed}} {
		d.touched(23 * time.Hour)
		d.expect(c.item, c.body, c.want)
		if idleAt, err := strconv.ParseInt(d.flow()[2], 10, 64); err != nil || time.Until(time.UnixMilli(idleAt)) < 23*time.Hour {
			t.Errorf("after %s the idle channel ends at %d, %v", c.body, idleAt, err)
		}
	}
	d.touched(25 * time.Hour)
	d.expect(third, "3", callback.Ended)
	if got := d.story(); got != "1 2 5 4 idle" {
		t.Errorf("the runtime sees %s", got)
	}
	d.nothingParked()
}

func channelCredentials(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	item := d.await(callruntime.AwaitOptions{})
	whole, model := d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel}), d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel, Kind: wire.LLMItem})
	d.expect(whole, "1", callback.Routed)
	d.expect(model, "1", callback.Routed)
	d.expect(whole, "2", callback.Routed)
	if v, receipt := d.deliver(d.delivery(whole, "1")); v != callback.Duplicate || receipt != `{"of": "1"}` {
		t.Errorf("the same again: %s with %s", v, receipt)
	}
	for range 2 {
		unidentified := d.delivery(whole, "hm")
		unidentified.Deduplicate = false
		if v, _ := d.deliver(unidentified); v != callback.Routed {
			t.Errorf("what may be said twice: %s", v)
		}
	}
	d.expect(item, "item", callback.Routed)
	if err := d.Cancel(t.Context(), model.ID); err != nil {
		t.Error(err)
	}
	d.expect(model, "3", callback.Cancelled)
	brief := d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel, TTL: briefly})
	d.over(brief)
	d.expect(brief, "late", callback.Invalid)
	if err := d.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	d.expect(whole, "1", callback.Ended)
	if got := d.story(); got != "1 1 2 hm hm item done" {
		t.Errorf("the runtime sees %s", got)
	}
}

func retention(t *testing.T, opts Options) {
	d := newDesk(t, opts, nil)
	used, whole := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel, TTL: time.Hour})
	d.expect(used, "1", callback.Routed)
	identified, plain := d.delivery(whole, "2"), d.delivery(whole, "3")
	plain.Deduplicate = false
	for _, use := range []callback.DeliverParams{identified, plain} {
		if v, _ := d.deliver(use); v != callback.Routed {
			t.Errorf("a use of the channel's: %s", v)
		}
	}
	waiting := d.await(callruntime.AwaitOptions{})
	early, cancelled := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	d.expect(early, "early", callback.Parked)
	if err := d.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	keys := kv.ChannelKeys(d.id)
	read := func(command ...string) (text string) {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			message, err := client.Do(ctx, client.B().Arbitrary(command[0]).Keys(command[1]).Args(command[2:]...).Build()).ToMessage()
			text = message.String()
			return err
		})
		return text
	}
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range []string{keys[0], keys[1], keys[5], keys[6]} {
			if ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ttl <= d.limits.IdleMs {
				t.Errorf("%s lives for %d ms, %v", key, ttl, err)
			}
		}
		return nil
	})
	everything := read("HGETALL", keys[0]) + read("HGETALL", keys[5]) + read("ZRANGE", keys[6], "0", "-1") + read("XRANGE", keys[1], "-", "+")
	for _, item := range []callruntime.WorkItem{used, whole, waiting} {
		if strings.Contains(everything, item.Token) || !strings.Contains(everything, d.delivery(item, "").Digest) {
			t.Error("the store has the token, or not its digest")
		}
	}
	for record, want := range map[string]time.Time{
		identified.Digest + " " + identified.BodyDigest: whole.ExpiresAt,
		plain.Digest + " " + plain.CallbackID:           time.Now().Add(10 * time.Minute), // for a lost answer alone
	} {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			until, err := client.Do(ctx, client.B().Zscore().Key(keys[6]).Member(record).Build()).AsFloat64()
			if off := want.Sub(time.UnixMilli(int64(until))); off.Abs() > time.Minute {
				t.Errorf("a use of the channel's is kept until %v, want %v", until, want)
			}
			return err
		})
	}
	for _, settled := range []struct {
		item callruntime.WorkItem
		body string
		want callback.Status
	}{{used, "1", callback.Duplicate}, {early, "early", callback.Duplicate}, {cancelled, "late", callback.Cancelled}} {
		digest, at := d.delivery(settled.item, "").Digest, fmt.Sprint(settled.item.ExpiresAt.UnixMilli())
		for ago, want := range map[time.Duration]callback.Status{59 * time.Minute: settled.want, 61 * time.Minute: callback.Invalid} {
			d.raw(func(ctx context.Context, client rueidis.Client) error {
				record, err := client.Do(ctx, client.B().Hget().Key(keys[5]).Field(digest).Build()).ToString()
				earlier := fmt.Sprint(time.Now().Add(-ago).UnixMilli())
				record, at = strings.Replace(record, at, earlier, 1), earlier
				return errors.Join(err, client.Do(ctx, client.B().Hset().Key(keys[5]).FieldValue().FieldValue(digest, record).Build()).Error())
			})
			d.expect(settled.item, settled.body, want)
		}
	}
	digest := d.delivery(used, "").Digest
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Zadd().Key(keys[6]).ScoreMember().ScoreMember(1, digest).ScoreMember(1, "@"+used.ID).Build()).Error()
	})
	d.await(callruntime.AwaitOptions{})
	if left := read("HGETALL", keys[5]); strings.Contains(left, digest) || strings.Contains(left, "@"+used.ID) || !strings.Contains(left, "@"+waiting.ID) {
		t.Errorf("what is left: %s", left)
	}
}
