package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
)

func callbackOrder(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	other, _ := connect(t, opts)
	instances := []*Callbacks{d.callbacks, fullCallbacks(other)}
	const items, workers = 200, 16
	var want []string
	var posts []callback.DeliverParams
	for i := range items {
		kind := []wire.WorkItemKind{wire.BotItem, wire.LLMItem, wire.ToolItem}[i%3]
		item := d.await(calls.AwaitOptions{Kind: kind, WorkItemID: fmt.Sprint("w", i)})
		if want = append(want, fmt.Sprint(i)); item.Kind != kind || item.ID != fmt.Sprint("w", i) {
			t.Fatalf("awaited %+v, want kind %s and ID w%d", item, kind, i)
		}
		posts = append(posts, d.delivery(item, fmt.Sprint(i)))
	}
	rand.Shuffle(items, func(i, j int) { posts[i], posts[j] = posts[j], posts[i] })
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < items; i += workers {
				if o, err := instances[i%2].Deliver(t.Context(), posts[i]); err != nil || o.Status != callback.Routed && o.Status != callback.Parked {
					t.Errorf("deliver: %+v, %v, want routed or parked", o, err)
				}
			}
		})
	}
	wg.Wait()
	if got := d.events(); got != strings.Join(want, " ") {
		t.Errorf("events on the runtime stream: %s, want %s", got, want)
	}
	d.expectNothingParked()
	for i := range items * 2 {
		got, err := d.Receive(t.Context())
		if err != nil || got.Entry.WorkItemID != fmt.Sprint("w", i/2) && (i/2)%3 == 0 { // bot callbacks have no work item ID in the path
			t.Fatalf("entry %d: %+v, %v, want work item w%d", i, got.Entry, err, i/2)
		}
	}
}

func concurrentCallbacks(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	other, _ := connect(t, opts)
	instances := []*Callbacks{d.callbacks, fullCallbacks(other)}
	const tokens, each = 100, 5
	var posts []callback.DeliverParams
	var want []string
	for i := range tokens {
		want = append(want, fmt.Sprint(i))
		posts = append(posts, d.delivery(d.await(calls.AwaitOptions{}), fmt.Sprint(i)))
	}
	var mu sync.Mutex
	statuses := map[callback.Status]int{}
	var wg sync.WaitGroup
	for w := range each {
		wg.Go(func() {
			for _, post := range posts {
				post.CallbackID = uuid.NewString()
				o, err := instances[w%2].Deliver(t.Context(), post)
				if err != nil || string(o.Receipt) != string(post.Receipt) {
					t.Errorf("deliver: %+v, %v, want receipt %s", o, err, post.Receipt)
				}
				mu.Lock()
				statuses[o.Status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if statuses[callback.Routed]+statuses[callback.Parked] != tokens || statuses[callback.Duplicate] != tokens*(each-1) {
		t.Errorf("statuses: %v, want %d routed or parked and %d duplicate", statuses, tokens, tokens*(each-1))
	}
	if got := d.events(); got != strings.Join(want, " ") {
		t.Errorf("events on the runtime stream: %s, want %s", got, want)
	}
}

func retriedCallbacks(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	first, second := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	plain := d.delivery(shared, "plain")
	plain.DuplicateFor = 0
	for _, c := range []struct {
		delivery callback.DeliverParams
		want     callback.Status
	}{{d.delivery(second, "second"), callback.Parked}, {d.delivery(first, "first"), callback.Routed}, {d.delivery(shared, "shared"), callback.Routed}, {plain, callback.Routed}} {
		for range 3 {
			o, err := d.callbacks.Deliver(t.Context(), c.delivery)
			if err != nil || o.Status != c.want || string(o.Receipt) != string(c.delivery.Receipt) || (o.Number == 2) != (c.want == callback.Parked) {
				t.Errorf("%s: %+v, %v, want %s with this receipt", c.delivery.Receipt, o, err, c.want)
			}
			if w := o.WaitsFor; (w != nil) != (c.want == callback.Parked) || w != nil && (w.WorkItemID != first.ID || !w.Deadline.Equal(first.ExpiresAt)) {
				t.Errorf("%s: waits for %+v, want %+v if it is parked", c.delivery.Receipt, w, first)
			}
		}
	}
	if err := d.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	if got, want := d.events(), "first second shared plain done"; got != want {
		t.Errorf("events on the runtime stream: %s, want %s", got, want)
	}
}

func callbackBackpressure(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, func(l *wire.ChannelLimits) { l.BacklogBytes = 2000 })
	var items []calls.WorkItem
	for range 40 {
		items = append(items, d.await(calls.AwaitOptions{}))
	}
	stale := d.delivery(items[0], "0")
	stale.Epoch = "other"
	if status, _ := d.deliver(stale); status != callback.Stale {
		t.Errorf("delivery with another epoch: %s, want %s", status, callback.Stale)
	}
	rejected := 1 // later items are parked until the backlog is full
	for ; ; rejected++ {
		status, _ := d.deliver(d.delivery(items[rejected], fmt.Sprint(rejected)))
		if status == callback.Backpressure {
			break
		}
		if status != callback.Parked || rejected > 30 {
			t.Fatalf("item %d: %s, want parked, and backpressure by item 30", rejected, status)
		}
	}
	d.expect(items[0], "0", callback.Routed) // releases the parked callbacks
	d.expect(items[rejected], "again", callback.Backpressure)
	if status, err := d.callbacks.CheckCredential(t.Context(), d.delivery(items[rejected], "").Credential); status != callback.Usable || err != nil {
		t.Errorf("credential after backpressure: %s, %v, want %s", status, err, callback.Usable)
	}
	for {
		r, err := d.Receive(t.Context())
		if err == nil {
			err = d.Commit(t.Context(), r.Position)
		}
		if err != nil {
			t.Fatal(err)
		}
		if status, _ := d.deliver(d.delivery(items[rejected], "again")); status == callback.Routed {
			break
		}
	}
	if got := d.events(); !strings.HasSuffix(got, fmt.Sprintf(" %d again", rejected-1)) {
		t.Errorf("events on the runtime stream: %s, want %d and again last", got, rejected-1)
	}

	few := newCallbackFixture(t, opts, func(l *wire.ChannelLimits) { l.BacklogEntries = 2 })
	few.expect(few.await(calls.AwaitOptions{}), "first", callback.Routed)
	next := few.delivery(few.await(calls.AwaitOptions{}), "next")
	other, _ := connect(t, opts)
	for _, instance := range []*Callbacks{few.callbacks, fullCallbacks(other)} {
		if o, err := instance.Deliver(t.Context(), next); err != nil || o.Status != callback.Backpressure {
			t.Errorf("full backlog: %+v, %v, want %s", o, err, callback.Backpressure)
		}
	}
	r, err := few.Receive(t.Context())
	if err = errors.Join(err, few.Commit(t.Context(), r.Position)); err != nil {
		t.Fatal(err)
	}
	if status, _ := few.deliver(next); status != callback.Routed {
		t.Errorf("after a commit: %s, want %s", status, callback.Routed)
	}
}
