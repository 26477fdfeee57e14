package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

const shortTTL = 50 * time.Millisecond

// waitExpired waits until a work item has expired, and lets the store record it.
func (d *callbackFixture) waitExpired(item calls.WorkItem) {
	d.channelFixture.Helper()
	testkit.Until(d.T, "work item expires", func() bool {
		state, err := d.callbacks.CheckCredential(d.Context(), d.delivery(item, "").Credential)
		return state.Status != callback.Usable && err == nil
	})
	d.script("touch") // CheckCredential does not write
}

// setFirstDeadline changes when the first work item of the channel times out.
func (d *callbackFixture) setFirstDeadline(at time.Time) {
	d.channelFixture.Helper()
	ms, flow := strconv.FormatInt(at.UnixMilli(), 10), d.flow()
	flow[0], flow[1] = "0", ms
	_, entries, _ := strings.Cut(d.field(kv.MetaKey(d.id), "1"), " ")
	d.do("HSET", kv.MetaKey(d.id), "1", ms+" "+entries)
	d.setField("flow", strings.Join(flow, " "))
}

func workItemTimeouts(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	t.Run("while the runtime receives", func(t *testing.T) {
		first := d.await(calls.AwaitOptions{WorkItemID: "never", Kind: wire.ToolItem})
		second, third := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
		d.expect(third, "third", callback.Parked)
		d.expect(second, "second", callback.Parked)
		deadline := time.Now().Add(shortTTL)
		d.setFirstDeadline(deadline)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
		defer cancel()
		var got []calls.Delivery
		for range 5 {
			r, err := d.Receive(ctx)
			testkit.Must(t, err)
			got = append(got, r)
		}
		if e := got[0].Entry; e.Kind != wire.KindTimeout || e.WorkItemID != "never" || e.WorkItemKind != "tool" || e.ChannelID != d.id || e.At == 0 || e.Trace.CallID != "call" {
			t.Errorf("timeout entry: %+v, want work item never of kind tool", e)
		}
		if got[1].Entry.Event != "second" || got[3].Entry.Event != "third" {
			t.Errorf("entries after the timeout: %+v, want second and third", got)
		}
		for _, r := range got {
			if at, _, _ := strings.Cut(got[0].Position, "-"); at == "" || r.Position[strings.Index(r.Position, "-"):] != got[0].Position[strings.Index(got[0].Position, "-"):] {
				t.Errorf("position %s has another time than %s", r.Position, got[0].Position)
			}
		}
		if at, _ := strconv.ParseInt(got[0].Position[strings.Index(got[0].Position, "-")+1:], 10, 64); at < deadline.UnixMilli() {
			t.Errorf("timed out at %d, before its deadline %d", at, deadline.UnixMilli())
		}
		d.expect(first, "late", callback.Invalid)
	})
	t.Run("item of an operator while the runtime waits", func(t *testing.T) {
		received := make(chan calls.Delivery, 1)
		go func() { r, _ := d.Receive(t.Context()); received <- r }()
		operator := d.runtime("operator").Observe(d.id, "")
		item, err := operator.Await(t.Context(), calls.AwaitOptions{TTL: shortTTL})
		testkit.Must(t, err)
		if r := <-received; r.Entry.WorkItemID != item.ID || r.Entry.Kind != wire.KindTimeout {
			t.Errorf("received %+v, want the timeout of %s", r, item.ID)
		}
	})
	t.Run("after an item that is still awaited", func(t *testing.T) {
		d := newCallbackFixture(t, opts, nil)
		head, expiring := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{TTL: shortTTL, WorkItemID: "expiring"})
		last := d.await(calls.AwaitOptions{})
		d.waitExpired(expiring)
		d.expect(expiring, "late", callback.Invalid)
		testkit.WantError(t, "cancel", d.Cancel(t.Context(), expiring.ID), calls.ErrWorkItemNotFound)
		d.expect(last, "last", callback.Parked)
		d.expectEvents("")
		d.expect(head, "head", callback.Routed)
		d.expectEvents("head timeout:expiring last")
		if items, err := d.WorkItems(t.Context()); err != nil || len(items) != 0 {
			t.Errorf("open items: %+v, %v; want none", items, err)
		}
	})
	t.Run("detected by another operation", func(t *testing.T) {
		d := newCallbackFixture(t, opts, nil)
		expiring := d.await(calls.AwaitOptions{TTL: shortTTL, WorkItemID: "expiring"})
		testkit.Until(t, "work item expires", func() bool { return time.Now().After(expiring.ExpiresAt.Add(time.Millisecond)) })
		d.attach("a")
		d.expectEvents("timeout:expiring connected")
	})
	t.Run("detected by a late callback", func(t *testing.T) {
		d := newCallbackFixture(t, opts, nil)
		d.expect(d.await(calls.AwaitOptions{}), "first", callback.Routed)
		expiring := d.await(calls.AwaitOptions{TTL: shortTTL, WorkItemID: "expiring"})
		testkit.Until(t, "work item expires", func() bool { return time.Now().After(expiring.ExpiresAt.Add(time.Millisecond)) })
		d.expect(expiring, "late", callback.Invalid)
		d.expectEvents("first timeout:expiring")
	})
	t.Run("final even if the clock of the store goes back", func(t *testing.T) {
		d := newCallbackFixture(t, opts, nil)
		expiring := d.await(calls.AwaitOptions{TTL: shortTTL, WorkItemID: "expiring"})
		d.waitExpired(expiring)
		later := fmt.Sprintf("awaiting 1 bot %d expiring   ", expiring.ExpiresAt.Add(time.Hour).UnixMilli())
		d.do("HSET", kv.MetaKey(d.id), d.delivery(expiring, "").Digest, later) // as if the deadline were in the future
		d.expect(expiring, "late", callback.Invalid)
		if state, err := d.callbacks.CheckCredential(t.Context(), d.delivery(expiring, "").Credential); state.Status != callback.Invalid || err != nil {
			t.Errorf("credential of an item that timed out: %s, %v, want %s", state.Status, err, callback.Invalid)
		}
		testkit.WantError(t, "cancel", d.Cancel(t.Context(), expiring.ID), calls.ErrWorkItemNotFound)
		d.expect(d.await(calls.AwaitOptions{}), "next", callback.Routed)
		d.expectEvents("timeout:expiring next")
		d.expectNothingParked()
		d.expectPending(false, false, false)
	})
}

func TestDeadlinesAreExact(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	m.SetTime(time.Now())
	d := newCallbackFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: []string{m.Addr()}, Embedded: true}}, nil)
	first := d.await(calls.AwaitOptions{TTL: 2 * time.Minute})
	soon := calls.AwaitOptions{TTL: time.Minute}
	cancelled, late := d.await(soon), d.await(soon)
	expect := func(at time.Time, item calls.WorkItem, outcome, cancel string) {
		t.Helper()
		m.SetTime(at)
		c := d.delivery(item, "").Credential
		testkit.Equal(t, "credential", d.script("check_credential", c.Digest, string(c.Kind), "")[0], outcome)
		listed := slices.Contains(d.script("items"), item.ID)
		testkit.Equal(t, "listed", listed, outcome == "usable")
		testkit.Equal(t, "cancel", d.script("cancel", d.claimToken(), item.ID)[0], cancel)
	}
	expect(cancelled.ExpiresAt.Add(-time.Millisecond), cancelled, "usable", "cancelled")
	expect(late.ExpiresAt, late, "invalid", "no_item")
	m.SetTime(first.ExpiresAt.Add(-time.Millisecond))
	d.script("touch")
	d.expectEvents("")
	m.SetTime(first.ExpiresAt)
	d.script("touch")
	d.expectEvents("timeout:" + first.ID + " timeout:" + late.ID)
}

func commitWithWorkItem(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	for _, body := range []string{"first", "second"} {
		d.expect(d.await(calls.AwaitOptions{}), body, callback.Routed)
	}
	expect := func(what, position string) {
		t.Helper()
		testkit.Equal(t, "committed position after "+what, d.field(kv.MetaKey(d.id), "committed"), position)
	}
	_, position := d.receive(d.Channel, "first")
	again := calls.AwaitOptions{Commit: position, WorkItemID: "again", Token: calls.NewToken()}
	for _, o := range []calls.AwaitOptions{{Commit: position}, {Commit: position}, again} {
		d.await(o)
		expect("a work item", position)
	}
	_, again.Commit = d.receive(d.Channel, "second")
	d.await(again)
	expect("a repeated work item", again.Commit)
}

func cancellations(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	a, b, c := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	e, f := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	d.expect(c, "c", callback.Parked)
	d.expect(e, "e", callback.Parked)
	meta, digest := kv.MetaKey(d.id), d.delivery(e, "").Digest
	late := strings.Replace(d.field(meta, digest), fmt.Sprint(e.ExpiresAt.UnixMilli()), "1", 1)
	d.do("HSET", meta, digest, late) // its deadline does not matter any more
	d.expectPending(false, true, true, true, true, true, false)
	operator := d.runtime("operator").Observe(d.id, "")
	for _, cancel := range []error{d.Cancel(t.Context(), b.ID), d.Cancel(t.Context(), e.ID), operator.Cancel(t.Context(), a.ID), d.Cancel(t.Context(), a.ID)} {
		if cancel != nil {
			t.Error(cancel)
		}
	}
	d.expect(f, "f", callback.Routed)
	d.expectEvents("c f")
	d.expectNothingParked()
	d.expectPending(false, false, false, false, false, false, false)
	for _, item := range []calls.WorkItem{a, b, e} {
		if item.ID != e.ID { // its credential is forgotten
			d.expect(item, "late", callback.Cancelled)
		}
	}
	for _, id := range []string{c.ID, f.ID, "unknown"} {
		testkit.WantError(t, fmt.Sprintf("cancel %s", id), d.Cancel(t.Context(), id), calls.ErrWorkItemNotFound)
	}
	testkit.WantError(t, "await an existing ID", testkit.ErrorOf(d.Await(t.Context(), calls.AwaitOptions{WorkItemID: a.ID})), calls.ErrWorkItemExists)
	for _, bad := range []calls.AwaitOptions{{Kind: "mail"}, {Scope: "team"}, {TTL: 25 * time.Hour}, {TTL: -1}, {WorkItemID: "a/b"}} {
		if _, err := d.Await(t.Context(), bad); err == nil {
			t.Errorf("await accepted %+v, want an error", bad)
		}
	}
}

func endWithParked(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	d.await(calls.AwaitOptions{})
	second, expiring := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{TTL: shortTTL, WorkItemID: "expiring"})
	d.await(calls.AwaitOptions{})
	last := d.await(calls.AwaitOptions{})
	d.expect(last, "last", callback.Parked)
	d.expect(second, "second", callback.Parked)
	d.waitExpired(expiring)
	for range 2 {
		testkit.Must(t, d.End(t.Context(), "done"))
	}
	d.expectEvents("second timeout:expiring last done")
}
