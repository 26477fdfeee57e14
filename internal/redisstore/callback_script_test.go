package redisstore

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/servers"
)

// wholeCallbacks go the long way with usual callbacks, too.
func wholeCallbacks(s *Store) *Callbacks {
	return &Callbacks{s, rueidis.NewLuaScriptRetryable(lua.Channel("callback"))}
}

// Whether the usual callback or the whole script takes it, what is kept of a
// callback, and told of it, is the same to the letter.
func TestUsualCallbacksLeaveWhatTheWholeScriptLeaves(t *testing.T) {
	embedded, err := StartEmbedded(t.TempDir(), (&journal{}).logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(embedded.Close)
	for engine, opts := range map[string]Options{"embedded": embedded.Options((&journal{}).logger()), "redis": redisOptions(servers.StartRedis(t))} {
		t.Run(engine, func(t *testing.T) {
			usual, whole := newDesk(t, opts, nil), newDesk(t, opts, nil)
			whole.callbacks = wholeCallbacks(whole.store)
			if a, b := usual.converse(), whole.converse(); a != b {
				t.Errorf("the usual callback leaves\n%s\nthe whole script\n%s", a, b)
			}
		})
	}
}

// Whoever waits for something on the channel is told when it happens, and how
// long to wait for what is awaited next.
func TestWhatHappensToWorkItemsIsToldAtOnce(t *testing.T) {
	d := newDesk(t, redisOptions(servers.StartRedis(t)), nil)
	told := d.overhear()
	a, b := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	c, e := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{})
	whole := d.await(callruntime.AwaitOptions{Scope: callruntime.ScopeChannel})
	d.expect(whole, "whole", callback.Routed)
	d.expect(a, "a", callback.Routed)
	d.expect(c, "c", callback.Parked)
	d.expect(b, "b", callback.Routed)
	d.expect(e, "e", callback.Routed)
	given, brief := d.await(callruntime.AwaitOptions{}), d.await(callruntime.AwaitOptions{TTL: briefly})
	d.over(brief)
	if err := d.Cancel(t.Context(), given.ID); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Dwait",                              // a is the first to be awaited
		"E2-time wait",                       // whole, and a is still awaited
		"E4-time wait",                       // a, and then b is awaited
		"E8-time wait", "E10-time ", "Dwait", // b and c; e; given
		"E11-time ", // given is cancelled, and brief over its time
	}
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("told is %q, want %q", got, want)
	}
}

// A runtime in another language cannot await what would spoil the entries, which
// get a work item's id as it is.
func TestIDsThatWouldSpoilEntriesAreNotAwaited(t *testing.T) {
	d := newDesk(t, redisOptions(servers.StartRedis(t)), nil)
	digest := strings.Repeat("0", 64)
	for _, bad := range [][3]string{{digest, "bot", `a"b`}, {digest, "bot", "a b"}, {digest, "b t", "a"}, {digest + " ", "bot", "a"}} {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			args := []string{"", bad[0], bad[1], "work_item", bad[2], "1000", "{}"}
			if err := rueidis.NewLuaScript(lua.Channel("await")).Exec(ctx, client, kv.ChannelKeys(d.id), args).Error(); err == nil || !strings.Contains(err.Error(), "letters") {
				t.Errorf("awaited %q: %v", bad, err)
			}
			return nil
		})
	}
	d.expect(d.await(callruntime.AwaitOptions{}), "first", callback.Routed)
}

// overhear listens to what a runtime is told, until the returned function is
// asked what that was. Times are left out.
func (d *desk) overhear() func() []string {
	d.stage.Helper()
	const last = "last"
	var told []string
	listening, heard := make(chan struct{}), make(chan struct{})
	topic := kv.RuntimeTopic(d.id)
	d.raw(func(_ context.Context, client rueidis.Client) error {
		conn, release := client.Dedicate()
		d.Cleanup(release)
		conn.SetPubSubHooks(rueidis.PubSubHooks{
			OnSubscription: func(rueidis.PubSubSubscription) { close(listening) },
			OnMessage: func(m rueidis.PubSubMessage) {
				if m.Message == last {
					close(heard)
					return
				}
				told = append(told, m.Message)
			},
		})
		return conn.Do(d.Context(), conn.B().Subscribe().Channel(topic).Build()).Error()
	})
	<-listening
	return func() []string {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Publish().Channel(topic).Message(last).Build()).Error()
		})
		<-heard
		for i, notice := range told {
			notice = regexp.MustCompile(`\d{13}`).ReplaceAllString(notice, "time")
			told[i] = regexp.MustCompile(`(^D| )\d+$`).ReplaceAllString(notice, "${1}wait")
		}
		return told
	}
}

// converse has items awaited and answered, and returns all that is kept of it
// and told.
func (d *desk) converse() string {
	told := d.overhear()
	var items []callruntime.WorkItem
	for n := range 40 {
		kind := []wire.WorkItemKind{wire.BotItem, wire.LLMItem}[n%2]
		items = append(items, d.await(callruntime.AwaitOptions{Kind: kind, WorkItemID: fmt.Sprint("item-", n)}))
	}
	order := []int{0, 1, 2, 4, 3, 6, 5}
	for n := 7; n < len(items); n++ { // in turn, past entries that say how many bytes there were
		order = append(order, n)
	}
	for _, n := range order {
		post := d.delivery(items[n], "said")
		post.CallbackID = fmt.Sprint("callback-", n)
		post.Entries = post.Entries[:min(n, len(post.Entries))] // the first says nothing
		verdict, receipt := d.deliver(post)
		if again, first := d.deliver(post); again != verdict || first != receipt {
			d.Errorf("item %d: %s with %s, and again %s with %s", n, verdict, receipt, again, first)
		}
	}
	kept := told()
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		keys := kv.ChannelKeys(d.id)
		for _, key := range []string{keys[0], keys[5]} {
			fields, err := client.Do(ctx, client.B().Hgetall().Key(key).Build()).AsStrMap()
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(fields)) {
				kept = append(kept, name+" = "+fields[name])
			}
		}
		entries, err := client.Do(ctx, client.B().Xrange().Key(keys[1]).Start("-").End("+").Build()).AsXRange()
		for _, e := range entries {
			kept = append(kept, fmt.Sprint(e.ID, e.FieldValues))
		}
		return err
	})
	text := strings.Join(kept, "\n")
	for n, item := range items {
		text = strings.ReplaceAll(text, d.delivery(item, "").Digest, fmt.Sprint("digest-", n))
	}
	text = regexp.MustCompile(`\d{13}`).ReplaceAllString(text, "time") // of the store
	text = strings.NewReplacer(d.id, "channel", d.epoch, "epoch").Replace(text)
	lines := strings.Split(regexp.MustCompile(`(?m)^claim.*$`).ReplaceAllString(text, ""), "\n")
	slices.Sort(lines) // fields were in the order of their digests
	return strings.Join(lines, "\n")
}

// A script travels once; after that it is called by its digest.
func TestTheCallbackScriptIsSentByItsDigest(t *testing.T) {
	r := servers.StartRedis(t)
	d := newDesk(t, redisOptions(r), nil)
	d.expect(d.await(callruntime.AwaitOptions{}), "first", callback.Routed)
	r.MustDo("CONFIG", "RESETSTAT")
	for n := range 20 {
		post := d.delivery(d.await(callruntime.AwaitOptions{}), fmt.Sprint(n))
		if v, _ := d.deliver(post); v != callback.Routed {
			t.Errorf("callback %d: %s", n, v)
		}
	}
	reply := r.MustDo("INFO", "commandstats")
	stats, err := reply.ToString()
	if err != nil || !strings.Contains(stats, "cmdstat_evalsha:calls=40,") || strings.Contains(stats, "cmdstat_eval:") {
		t.Errorf("of 20 items that were awaited and answered Redis counts %s, %v", stats, err)
	}
}
