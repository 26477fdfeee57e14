package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func boundedWorkItems(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	d.do("HSET", kv.MetaKey(d.id), "queue", fmt.Sprintf("1 %d 0", calls.MaxWorkItems-1), "shared", fmt.Sprint(calls.MaxWorkItems-1))
	for _, scope := range []wire.Scope{wire.ScopeItem, wire.ScopeChannel} {
		last := d.await(calls.AwaitOptions{Scope: scope})
		testkit.WantError(t, "one more", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{Scope: scope})), calls.ErrTooManyWorkItems)
		testkit.Must(t, testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{Scope: scope, WorkItemID: last.ID, Token: last.Token}))) // again
		testkit.Must(t, d.Cancel(t.Context(), last.ID))
	}
	d.await(calls.AwaitOptions{}) // the others are settled
	testkit.WantError(t, "one channel credential more", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{Scope: wire.ScopeChannel})), calls.ErrTooManyWorkItems)
}

func settledWorkItems(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	const remembered = 1024
	shared, first := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel}), d.await(calls.AwaitOptions{})
	d.expect(first, "answer", callback.Routed)
	settle := func(items int) {
		t.Helper()
		d.do("HSET", kv.MetaKey(d.id), "queue", fmt.Sprintf("%d %d 0", items+1, items))
		d.await(calls.AwaitOptions{Scope: wire.ScopeChannel}) // looks for fields that are not needed any more
	}
	settle(remembered)
	d.expect(first, "answer", callback.Duplicate)
	settle(remembered + 1)
	d.expect(first, "answer", callback.Invalid)
	d.expect(d.await(calls.AwaitOptions{WorkItemID: first.ID}), "answer", callback.Routed)
	d.expect(shared, "answer", callback.Routed)
}

func callbackOrder(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	other, _ := connect(t, opts)
	instances := []*Callbacks{d.callbacks, NewCallbacks(other)}
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
	d.expectEvents(strings.Join(want, " "))
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
	instances := []*Callbacks{d.callbacks, NewCallbacks(other)}
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
	d.expectEvents(strings.Join(want, " "))
}

func retriedCallbacks(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	first, second := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	shared := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
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
	testkit.Must(t, d.End(t.Context(), "done"))
	d.expectEvents("first second shared plain done")
}

func parkedBehindStream(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	var items []calls.WorkItem
	for range 4 {
		items = append(items, d.await(calls.AwaitOptions{Kind: wire.LLMItem}))
	}
	for i, status := range []callback.Status{callback.Routed, callback.Parked} {
		o, err := d.callbacks.DeliverStream(t.Context(), d.streamed(items[i], "part", 1))
		if err != nil || o.Status != status {
			t.Errorf("part of item %d: %+v, %v, want %s", i, o, err, status)
		}
	}
	for i := range 2 { // the stream of the second item was parked before its turn
		o, err := d.callbacks.Deliver(t.Context(), d.delivery(items[2+i], "plain"))
		if err != nil || o.Status != callback.Parked || o.WaitsFor == nil || o.WaitsFor.WorkItemID != items[i].ID || !o.WaitsFor.Deadline.Equal(items[i].ExpiresAt) {
			t.Errorf("deliver: %+v, %v, want parked until %+v is settled", o, err, items[i])
		}
		open, err := d.WorkItems(t.Context())
		testkit.Must(t, err)
		for _, item := range open {
			testkit.Equal(t, "parked: item "+item.WorkItemID, item.Parked, item.WorkItemID == items[2].ID || item.WorkItemID == items[2+i].ID)
		}
		testkit.Equal(t, "open items", len(open), 4-i)
		testkit.Must(t, d.Cancel(t.Context(), items[i].ID))
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
	if state, err := d.callbacks.CheckCredential(t.Context(), d.delivery(items[rejected], "").Credential); state.Status != callback.Usable || err != nil {
		t.Errorf("credential after backpressure: %s, %v, want %s", state.Status, err, callback.Usable)
	}
	for {
		r, err := d.Receive(t.Context())
		if err == nil {
			err = d.Commit(t.Context(), r.Position)
		}
		testkit.Must(t, err)
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
	for _, instance := range []*Callbacks{few.callbacks, NewCallbacks(other)} {
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

func callbacksResetIdleTimeout(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	first, second := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	third, fourth := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	shared := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
	for _, c := range []struct {
		item calls.WorkItem
		body string
		want callback.Status
	}{{first, "1", callback.Routed}, {second, "2", callback.Routed}, {fourth, "4", callback.Parked}, {shared, "5", callback.Routed}} {
		d.setIdle(23 * time.Hour)
		d.expect(c.item, c.body, c.want)
		if idleAt, err := strconv.ParseInt(d.flow()[2], 10, 64); err != nil || time.Until(time.UnixMilli(idleAt)) < 23*time.Hour {
			t.Errorf("after callback %s: idle deadline %d, %v, want at least 23h from now", c.body, idleAt, err)
		}
	}
	d.setIdle(25 * time.Hour)
	d.expect(third, "3", callback.Ended)
	d.expectEvents("1 2 5 4 idle")
	d.expectNothingParked()
}

func channelCredentials(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	item := d.await(calls.AwaitOptions{})
	shared, model := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel}), d.await(calls.AwaitOptions{Scope: wire.ScopeChannel, Kind: wire.LLMItem, TTL: time.Hour})
	d.expect(shared, "1", callback.Routed)
	d.expect(model, "1", callback.Routed)
	d.expect(shared, "2", callback.Routed)
	if status, receipt := d.deliver(d.delivery(shared, "1")); status != callback.Duplicate || receipt != `{"of": "1"}` {
		t.Errorf("repeated body: %s, receipt %s, want a duplicate with the first receipt", status, receipt)
	}
	for range 2 {
		plain := d.delivery(shared, "plain")
		plain.DuplicateFor = 0
		if status, _ := d.deliver(plain); status != callback.Routed {
			t.Errorf("repeated body without deduplication: %s, want %s", status, callback.Routed)
		}
	}
	result := d.delivery(model, "result")
	result.DuplicateFor = 10 * time.Minute
	for i, want := range []callback.Status{callback.Routed, callback.Duplicate, callback.Routed, callback.Duplicate} {
		if i == 2 { // the window has passed, but the record is not deleted yet
			record := result.Digest + " " + result.BodyDigest
			if left := time.Until(d.forgottenAt(record)); left > 10*time.Minute || left < 9*time.Minute {
				t.Errorf("an equal body is a duplicate for %v, want 10m", left)
			}
			d.forgetUse(record)
		}
		result.CallbackID = fmt.Sprint("result-", i)
		if status, _ := d.deliver(result); status != want {
			t.Errorf("result %d: %s, want %s", i, status, want)
		}
	}
	d.expect(item, "item", callback.Routed)
	testkit.Must(t, d.Cancel(t.Context(), model.ID))
	d.expect(model, "3", callback.Cancelled)
	expiring := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel, TTL: shortTTL})
	d.waitExpired(expiring)
	d.expect(expiring, "late", callback.Invalid)
	testkit.Must(t, d.End(t.Context(), "done"))
	d.expect(shared, "1", callback.Ended)
	d.expectEvents("1 1 2 plain plain result result item done")
}

func retention(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	used, shared := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Scope: wire.ScopeChannel, TTL: time.Hour})
	d.expect(used, "1", callback.Routed)
	identified, plain := d.delivery(shared, "2"), d.delivery(shared, "3")
	plain.DuplicateFor = 0
	for _, use := range []callback.DeliverParams{identified, plain} {
		if status, _ := d.deliver(use); status != callback.Routed {
			t.Errorf("callback with the channel credential: %s, want %s", status, callback.Routed)
		}
	}
	waiting := d.await(calls.AwaitOptions{})
	early, cancelled := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	d.expect(early, "early", callback.Parked)
	testkit.Must(t, d.Cancel(t.Context(), cancelled.ID))
	meta, in := kv.MetaKey(d.id), kv.RuntimeStreamKey(d.id)
	read := func(command, key string, args ...string) string {
		reply := d.do(command, key, args...)
		return reply.String()
	}
	d.expectTTL(meta, in)
	everything := read("HGETALL", meta) + read("XRANGE", in, "-", "+")
	for _, item := range []calls.WorkItem{used, shared, waiting} {
		if strings.Contains(everything, item.Token) || !strings.Contains(everything, d.delivery(item, "").Digest) {
			t.Error("the store contains the token or lacks its digest")
		}
	}
	for record, want := range map[string]time.Time{
		identified.Digest + " " + identified.BodyDigest: shared.ExpiresAt,
		plain.Digest + " " + plain.CallbackID:           time.Now().Add(10 * time.Minute), // long enough for a retry after a lost reply
	} {
		if until := d.forgottenAt(record); want.Sub(until).Abs() > time.Minute {
			t.Errorf("record of a channel callback expires at %v, want %v", until, want)
		}
	}
	for _, settled := range []struct {
		item calls.WorkItem
		body string
		want callback.Status
	}{{used, "1", callback.Duplicate}, {early, "early", callback.Duplicate}, {cancelled, "late", callback.Cancelled}} {
		digest, at := d.delivery(settled.item, "").Digest, fmt.Sprint(settled.item.ExpiresAt.UnixMilli())
		for ago, want := range map[time.Duration]callback.Status{59 * time.Minute: settled.want, 61 * time.Minute: callback.Invalid} {
			earlier := fmt.Sprint(time.Now().Add(-ago).UnixMilli())
			d.do("HSET", meta, digest, strings.Replace(d.field(meta, digest), at, earlier, 1))
			at = earlier
			d.expect(settled.item, settled.body, want)
		}
	}
	digest := d.delivery(used, "").Digest
	d.do("HSET", meta, digest, "routed 1 bot 1 "+used.ID+"   ")
	for range 8 { // each looks at some of the records
		d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
	}
	if left := read("HGETALL", meta); strings.Contains(left, digest) || strings.Contains(left, "@"+used.ID) || !strings.Contains(left, "@"+waiting.ID) {
		t.Errorf("records after cleanup: %s, want those of %s and not of %s", left, waiting.ID, used.ID)
	}
}
