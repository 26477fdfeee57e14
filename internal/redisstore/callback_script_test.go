package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/testkit"
)

// fullCallbacks returns the callbacks of a store without the fast version of the
// script. It replaces the script of the store.
func fullCallbacks(s *Store) *Callbacks {
	s.scripts["callback"] = rueidis.NewLuaScriptRetryable(lua.Script("channel", "callback"))
	return NewCallbacks(s)
}

// The runtime is notified of every change of a work item and of the next timeout.
func TestWorkItemChangesNotifyRuntime(t *testing.T) {
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	notices := d.recordNotices()
	a, b := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	c, e := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{})
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	d.expect(shared, "shared", callback.Routed)
	d.expect(a, "a", callback.Routed)
	d.expect(c, "c", callback.Parked)
	d.expect(b, "b", callback.Routed)
	d.expect(e, "e", callback.Routed)
	cancelled, expiring := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{TTL: shortTTL})
	d.waitExpired(expiring)
	if err := d.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Dwait",                              // a is the first to be awaited
		"E2-time wait",                       // shared; a is still awaited
		"E4-time wait",                       // a; b is awaited next
		"E8-time wait", "E10-time ", "Dwait", // b and c; e; cancelled is awaited
		"E11-time ", // cancelled is cancelled; expiring has timed out
	}
	if got := notices(); !slices.Equal(got, want) {
		t.Errorf("notices: %q, want %q", got, want)
	}
}

func TestCredentialBelongsToOneWorkItem(t *testing.T) {
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	first := calls.AwaitOptions{WorkItemID: "first", Token: calls.NewToken()}
	d.await(first)
	d.await(first) // again
	if _, err := d.Await(t.Context(), calls.AwaitOptions{WorkItemID: "second", Token: first.Token}); !errors.Is(err, calls.ErrWorkItemExists) {
		t.Errorf("second work item with the same credential: %v, want ErrWorkItemExists", err)
	}
	if items, err := d.WorkItems(t.Context()); err != nil || len(items) != 1 || items[0].ID != "first" {
		t.Errorf("open items: %+v, %v; want the first", items, err)
	}
}

// recordNotices records the notices to the runtime. The returned function stops
// recording and returns the notices with times masked.
func (d *callbackFixture) recordNotices() func() []string {
	d.channelFixture.Helper()
	const last = "last"
	var notices []string
	subscribed, received := make(chan struct{}), make(chan struct{})
	topic := kv.RuntimeTopic(d.id)
	d.raw(func(_ context.Context, client rueidis.Client) error {
		conn, release := client.Dedicate()
		d.Cleanup(release)
		conn.SetPubSubHooks(rueidis.PubSubHooks{
			OnSubscription: func(rueidis.PubSubSubscription) { close(subscribed) },
			OnMessage: func(m rueidis.PubSubMessage) {
				if m.Message == last {
					close(received)
					return
				}
				notices = append(notices, m.Message)
			},
		})
		return conn.Do(d.Context(), conn.B().Subscribe().Channel(topic).Build()).Error()
	})
	<-subscribed
	return func() []string {
		d.raw(func(ctx context.Context, client rueidis.Client) error {
			return client.Do(ctx, client.B().Publish().Channel(topic).Message(last).Build()).Error()
		})
		<-received
		for i, notice := range notices {
			notice = regexp.MustCompile(`\d{13}`).ReplaceAllString(notice, "time")
			notices[i] = regexp.MustCompile(`(^D| )\d+$`).ReplaceAllString(notice, "${1}wait")
		}
		return notices
	}
}

// A script is sent once and then called by its digest.
func TestCallbackScriptRunsByDigest(t *testing.T) {
	r := testkit.StartRedis(t)
	d := newCallbackFixture(t, redisOptions(r), nil)
	d.expect(d.await(calls.AwaitOptions{}), "first", callback.Routed)
	r.MustDo("CONFIG", "RESETSTAT")
	for n := range 20 {
		post := d.delivery(d.await(calls.AwaitOptions{}), fmt.Sprint(n))
		if status, _ := d.deliver(post); status != callback.Routed {
			t.Errorf("callback %d: %s, want %s", n, status, callback.Routed)
		}
	}
	reply := r.MustDo("INFO", "commandstats")
	stats, err := reply.ToString()
	if err != nil || !strings.Contains(stats, "cmdstat_evalsha:calls=40,") || strings.Contains(stats, "cmdstat_eval:") {
		t.Errorf("command stats after 20 work items: %s, %v, want 40 calls of EVALSHA and none of EVAL", stats, err)
	}
}

// Check scripts run as read-only scripts here, in which Redis rejects writes. The
// embedded engine is not tested: its read-only scripts have no clock.
func TestCheckScriptsAreReadOnly(t *testing.T) {
	d := newCallbackFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	d.attach("a")
	item := d.delivery(d.await(calls.AwaitOptions{TTL: time.Hour}), "")
	d.setIdle(25 * time.Hour) // a script that changes a channel would end it now
	for _, name := range []string{"check_credential", "check_connect"} {
		d.store.scripts[name] = rueidis.NewLuaScriptReadOnly(lua.Channel(name))
	}
	if status, err := d.callbacks.CheckCredential(t.Context(), item.Credential); status == callback.Usable || err != nil {
		t.Errorf("credential of an idle channel: %s, %v, want it to be rejected", status, err)
	}
	if err := d.channels.CheckAttach(t.Context(), d.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("connection to an idle channel: %v", err)
	}
}
