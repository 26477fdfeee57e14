package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// existingKeys returns which keys of the channel exist.
func (s *channelFixture) existingKeys() (names []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range kv.ChannelKeys(s.id) {
			exists, err := client.Do(ctx, client.B().Exists().Key(key).Build()).AsBool()
			if err != nil {
				return err
			}
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if exists && (err != nil || ttl < 0) {
				s.Errorf("%s has no TTL: %d, %v", key, ttl, err)
			}
			if exists {
				names = append(names, key[strings.LastIndex(key, ":")+1:])
			}
		}
		return nil
	})
	return names
}

func (s *channelFixture) length(key string) (n int64) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) (err error) {
		n, err = client.Do(ctx, client.B().Xlen().Key(key).Build()).AsInt64()
		return err
	})
	return n
}

// A cluster can only move the slot of a live channel if all keys of its scripts
// exist.
func allKeysExist(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	if got := s.existingKeys(); len(got) != 9 {
		t.Errorf("a new channel has the keys %v, want 9", got)
	}
	c := s.attachRuntime("r")
	for i := range 3 {
		s.frame("a", fmt.Sprint(i))
	}
	s.send(c, "1")
	if got := s.existingKeys(); len(got) != 9 {
		t.Errorf("a channel in use has the keys %v, want 9", got)
	}
}

func TestIdleChannelIsSmall(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	const most = 4608
	var bytes int64
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range kv.ChannelKeys(s.id) {
			n, err := client.Do(ctx, client.B().MemoryUsage().Key(key).Build()).AsInt64()
			if err != nil {
				return err
			}
			bytes += n
		}
		return nil
	})
	if bytes > most {
		t.Errorf("an idle channel uses %d bytes, want at most %d", bytes, most)
	}
}

// COPY only saves memory. The script would fail after it has changed some of the keys.
func TestSessionOpensWithoutPermissionToCopy(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().AclSetuser().Username("default").Rule("-copy").Build()).Error()
	})
	s.attach("a")
}

// Committed entries are kept for observers, but not more than 1 MiB of them.
func committedEntriesAreBounded(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	const entries, size = 200, 32 << 10
	text := strings.Repeat("x", size)
	for i := range entries {
		entry := fmt.Sprintf(`{"kind":"frame","channelId":%q,"event":"%d","text":"%s"}`, s.id, i, text)
		if got := s.append("a", channel.Frame{MessageID: fmt.Sprint(i), Entry: []byte(entry)})[0]; got != channel.Appended {
			t.Fatalf("frame %d: %s, want %s", i, got, channel.Appended)
		}
		_, position := s.receive(c, fmt.Sprint(i))
		if err := c.Commit(t.Context(), position); err != nil {
			t.Fatal(err)
		}
	}
	kept := s.length(kv.RuntimeStreamKey(s.id))
	if most := int64(1<<20/size + 2*16); kept > most || kept < 16 {
		t.Errorf("%d entries of %d KiB are kept, want 16 to %d", kept, size>>10, most)
	}
}

// Once the end of a channel is committed, only what is needed to reject late
// callbacks is kept.
func endedChannelIsSmall(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	used, open := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Kind: wire.LLMItem})
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	for i := range 20 {
		d.expect(shared, fmt.Sprint(i), callback.Routed)
		d.channelFixture.send(d.Channel, fmt.Sprint(i))
	}
	d.expect(used, "used", callback.Routed)
	if err := d.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	_, position := d.receive(d.Channel, "done")
	if err := d.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(d.existingKeys(), " "); got != "meta in out work" {
		t.Errorf("kept keys: %s, want meta in out work", got)
	}
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		for key, most := range map[string]time.Duration{kv.MetaKey(d.id): time.Hour + calls.DefaultTTL, kv.RuntimeStreamKey(d.id): 5 * time.Minute, kv.HistoryKey(d.id): 5 * time.Minute} {
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if kept := time.Duration(ttl) * time.Millisecond; kept < most-5*time.Minute || kept > most || err != nil {
				t.Errorf("%s is kept for %v, %v; want at most %v", key, kept, err, most)
			}
		}
		return errors.Join(client.Do(ctx, client.B().Del().Key(kv.RuntimeStreamKey(d.id)).Build()).Error(), client.Do(ctx, client.B().Del().Key(kv.HistoryKey(d.id)).Build()).Error())
	})
	for _, item := range []calls.WorkItem{used, open, shared} {
		d.expect(item, "late", callback.Ended)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := d.runtime("r").Attach(t.Context(), d.id); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("attach after the committed end: %v, want ErrEnded", err)
	}
	if _, err := d.runtime("o").Observe(d.id, "").Receive(t.Context()); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("observe after both streams are deleted: %v, want ErrEnded", err)
	}
}

// A body that is used again after its duplicate window is remembered as a new use,
// even when the old use is evicted.
func evictionKeepsLaterUse(t *testing.T, opts Options) {
	const remembered = 1024
	d := newCallbackFixture(t, opts, nil)
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	d.expect(shared, "reused", callback.Routed) // use 1
	use := d.delivery(shared, "reused")
	d.raw(func(ctx context.Context, client rueidis.Client) error { // the window has passed, but use 1 is not deleted yet
		add := client.B().Zadd().Key(forgetKey(d.id)).ScoreMember()
		counterAt := float64(time.Now().Add(time.Hour).UnixMilli())
		return client.Do(ctx, add.ScoreMember(1, use.Digest+" "+use.BodyDigest).ScoreMember(counterAt, "#1").Build()).Error()
	})
	d.expect(shared, "reused", callback.Routed) // use 2
	for i := range remembered - 1 {
		other := d.delivery(shared, fmt.Sprint(i))
		other.Entries = other.Entries[:1]
		if status, _ := d.deliver(other); status != callback.Routed {
			t.Fatalf("use %d: %s, want %s", 3+i, status, callback.Routed)
		}
	}
	d.expect(shared, "reused", callback.Duplicate)
}

// The last 1,024 uses of channel credentials are remembered.
func usesAreBounded(t *testing.T, opts Options) {
	const remembered = 1024
	d := newCallbackFixture(t, opts, nil)
	shared := d.await(calls.AwaitOptions{Scope: calls.ScopeChannel})
	for i := range remembered + 10 {
		use := d.delivery(shared, fmt.Sprint(i))
		use.Entries = use.Entries[:1]
		if status, _ := d.deliver(use); status != callback.Routed {
			t.Fatalf("use %d: %s, want %s", i, status, callback.Routed)
		}
	}
	d.expect(shared, fmt.Sprint(remembered+9), callback.Duplicate)
	d.expect(shared, "10", callback.Duplicate)
	d.expect(shared, "9", callback.Routed)
	d.raw(func(ctx context.Context, client rueidis.Client) error {
		n, err := client.Do(ctx, client.B().Hlen().Key(kv.WorkKey(d.id)).Build()).AsInt64()
		if n > 2*remembered+5 {
			t.Errorf("%d fields of work are kept, want two for each use and a few others", n)
		}
		return err
	})
}
