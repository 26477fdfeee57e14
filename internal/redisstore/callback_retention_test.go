package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/kv"
)

func callbacksResetIdleTimeout(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	first, second := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	third, fourth := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
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
	if got, want := d.events(), "1 2 5 4 idle"; got != want {
		t.Errorf("events on the runtime stream: %s, want %s", got, want)
	}
	d.expectNothingParked()
}

func channelCredentials(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	item := d.await(calls.AwaitOptions{})
	shared, model := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel}), d.await(calls.AwaitOptions{Scope: calls.ScopeChannel, Kind: wire.LLMItem, TTL: time.Hour})
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
			d.raw(func(ctx context.Context, client rueidis.Client) error {
				forget, record := forgetKey(d.id), result.Digest+" "+result.BodyDigest
				until, err := client.Do(ctx, client.B().Zscore().Key(forget).Member(record).Build()).AsFloat64()
				if left := time.Until(time.UnixMilli(int64(until))); left > 10*time.Minute || left < 9*time.Minute {
					t.Errorf("an equal body is a duplicate for %v, want 10m", left)
				}
				return errors.Join(err, client.Do(ctx, client.B().Zadd().Key(forget).ScoreMember().ScoreMember(1, record).Build()).Error())
			})
		}
		result.CallbackID = fmt.Sprint("result-", i)
		if status, _ := d.deliver(result); status != want {
			t.Errorf("result %d: %s, want %s", i, status, want)
		}
	}
	d.expect(item, "item", callback.Routed)
	if err := d.Cancel(t.Context(), model.ID); err != nil {
		t.Error(err)
	}
	d.expect(model, "3", callback.Cancelled)
	expiring := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel, TTL: shortTTL})
	d.waitExpired(expiring)
	d.expect(expiring, "late", callback.Invalid)
	if err := d.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	d.expect(shared, "1", callback.Ended)
	if got, want := d.events(), "1 1 2 plain plain result result item done"; got != want {
		t.Errorf("events on the runtime stream: %s, want %s", got, want)
	}
}

func retention(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	used, shared := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Scope: calls.ScopeChannel, TTL: time.Hour})
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
	if err := d.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	meta, in, work, forget := kv.MetaKey(d.id), kv.RuntimeStreamKey(d.id), kv.WorkKey(d.id), forgetKey(d.id)
	read := func(command ...string) (text string) {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			message, err := client.Do(ctx, client.B().Arbitrary(command[0]).Keys(command[1]).Args(command[2:]...).Build()).ToMessage()
			text = message.String()
			return err
		})
		return text
	}
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range []string{meta, in, work, forget} {
			if ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64(); err != nil || ttl <= d.limits.IdleMs {
				t.Errorf("%s: TTL %d ms, %v, want more than %d ms", key, ttl, err, d.limits.IdleMs)
			}
		}
		return nil
	})
	everything := read("HGETALL", meta) + read("HGETALL", work) + read("ZRANGE", forget, "0", "-1") + read("XRANGE", in, "-", "+")
	for _, item := range []calls.WorkItem{used, shared, waiting} {
		if strings.Contains(everything, item.Token) || !strings.Contains(everything, d.delivery(item, "").Digest) {
			t.Error("the store contains the token or lacks its digest")
		}
	}
	for record, want := range map[string]time.Time{
		identified.Digest + " " + identified.BodyDigest: shared.ExpiresAt,
		plain.Digest + " " + plain.CallbackID:           time.Now().Add(10 * time.Minute), // long enough for a retry after a lost reply
	} {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			until, err := client.Do(ctx, client.B().Zscore().Key(forget).Member(record).Build()).AsFloat64()
			if off := want.Sub(time.UnixMilli(int64(until))); off.Abs() > time.Minute {
				t.Errorf("record of a channel callback expires at %v, want %v", until, want)
			}
			return err
		})
	}
	for _, settled := range []struct {
		item calls.WorkItem
		body string
		want callback.Status
	}{{used, "1", callback.Duplicate}, {early, "early", callback.Duplicate}, {cancelled, "late", callback.Cancelled}} {
		digest, at := d.delivery(settled.item, "").Digest, fmt.Sprint(settled.item.ExpiresAt.UnixMilli())
		for ago, want := range map[time.Duration]callback.Status{59 * time.Minute: settled.want, 61 * time.Minute: callback.Invalid} {
			d.raw(func(ctx context.Context, client rueidis.Client) error {
				record, err := client.Do(ctx, client.B().Hget().Key(work).Field(digest).Build()).ToString()
				earlier := fmt.Sprint(time.Now().Add(-ago).UnixMilli())
				record, at = strings.Replace(record, at, earlier, 1), earlier
				return errors.Join(err, client.Do(ctx, client.B().Hset().Key(work).FieldValue().FieldValue(digest, record).Build()).Error())
			})
			d.expect(settled.item, settled.body, want)
		}
	}
	digest := d.delivery(used, "").Digest
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Zadd().Key(forget).ScoreMember().ScoreMember(1, digest).ScoreMember(1, "@"+used.ID).Build()).Error()
	})
	d.await(calls.AwaitOptions{})
	if left := read("HGETALL", work); strings.Contains(left, digest) || strings.Contains(left, "@"+used.ID) || !strings.Contains(left, "@"+waiting.ID) {
		t.Errorf("records after cleanup: %s, want those of %s and not of %s", left, waiting.ID, used.ID)
	}
}
