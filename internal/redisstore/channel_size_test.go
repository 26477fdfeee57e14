package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	for _, key := range kv.ChannelKeys(s.id) {
		switch ttl := s.number("PTTL", key); ttl {
		case -2: // no key
		case -1:
			s.Errorf("%s has no TTL", key)
		default:
			names = append(names, key[strings.LastIndex(key, ":")+1:])
		}
	}
	return names
}

// A cluster can only move the slot of a live channel if all keys of its scripts
// exist.
func allKeysExist(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	if got := s.existingKeys(); len(got) != 3 {
		t.Errorf("a new channel has the keys %v, want 3", got)
	}
	c := s.attachRuntime("r")
	for i := range 3 {
		s.frame("a", fmt.Sprint(i))
	}
	s.send(c, "1")
	if got := s.existingKeys(); len(got) != 3 {
		t.Errorf("a channel in use has the keys %v, want 3", got)
	}
}

func TestIdleChannelIsSmall(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	const most = 3072
	var bytes int64
	for _, key := range kv.ChannelKeys(s.id) {
		bytes += s.number("MEMORY", "USAGE", key, "SAMPLES", "0") // of all fields
	}
	if bytes > most {
		t.Errorf("an idle channel uses %d bytes, want at most %d", bytes, most)
	}
}

// COPY only saves memory. The script would fail after it has changed some of the keys.
func TestSessionOpensWithoutPermissionToCopy(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.do("ACL", "SETUSER", "default", "-copy")
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
		testkit.Must(t, c.Commit(t.Context(), position))
	}
	kept := s.number("XLEN", kv.RuntimeStreamKey(s.id))
	if most := int64(1<<20/size + 2*16); kept > most || kept < 16 {
		t.Errorf("%d entries of %d KiB are kept, want 16 to %d", kept, size>>10, most)
	}
}

// Once the end of a channel is committed, only what is needed to reject late
// callbacks is kept.
func endedChannelIsSmall(t *testing.T, opts Options) {
	d := newCallbackFixture(t, opts, nil)
	used, streamed, open := d.await(calls.AwaitOptions{}), d.await(calls.AwaitOptions{Kind: wire.LLMItem}), d.await(calls.AwaitOptions{Kind: wire.LLMItem})
	shared := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
	for i := range 20 {
		d.expect(shared, fmt.Sprint(i), callback.Routed)
		d.channelFixture.send(d.Channel, fmt.Sprint(i))
	}
	plain, stream := d.delivery(used, "used"), d.streamed(streamed, "a.", 1)
	deliverBoth := func() {
		t.Helper()
		delivered, err := d.callbacks.Deliver(t.Context(), plain)
		if err != nil || delivered.Status != callback.Routed || string(delivered.Receipt) != string(plain.Receipt) {
			t.Errorf("callback: %+v, %v, want it routed with its receipt", delivered, err)
		}
		delivered, err = d.callbacks.DeliverStream(t.Context(), stream)
		if err != nil || delivered.Status != callback.Routed || string(delivered.Receipt) != string(stream.Receipt) {
			t.Errorf("stream: %+v, %v, want it routed with its receipt", delivered, err)
		}
	}
	deliverBoth()
	testkit.Must(t, d.End(t.Context(), "done"))
	_, position := d.receive(d.Channel, "done")
	testkit.Must(t, d.Commit(t.Context(), position))
	testkit.Equal(t, "kept keys", strings.Join(d.existingKeys(), " "), "meta in out")
	fields := d.do("HKEYS", kv.MetaKey(d.id))
	if names, err := fields.AsStrSlice(); err != nil || slices.Contains(names, "profile") || !slices.Contains(names, "endReason") {
		t.Errorf("kept fields: %q, %v, want endReason and not profile", names, err)
	}
	in, out := kv.RuntimeStreamKey(d.id), kv.HistoryKey(d.id)
	for key, most := range map[string]time.Duration{kv.MetaKey(d.id): time.Hour + calls.DefaultTTL, in: 5 * time.Minute, out: 5 * time.Minute} {
		if kept := time.Duration(d.number("PTTL", key)) * time.Millisecond; kept < most-5*time.Minute || kept > most {
			t.Errorf("%s is kept for %v, want at most %v", key, kept, most)
		}
	}
	for range 2 {
		if messages, complete, err := d.channels.Since(t.Context(), d.id, channel.Cursor{Epoch: d.epoch}); err != nil || !complete || len(messages) != 20 {
			t.Errorf("history: %d messages, complete: %v, %v, want all 20", len(messages), complete, err)
		}
	}
	d.do("DEL", in)
	d.do("DEL", out)
	deliverBoth() // the first reply may be lost
	for _, item := range []calls.WorkItem{used, streamed, open, shared} {
		d.expect(item, "late", callback.Ended)
	}
	testkit.NoError(t, "close", d.Close(t.Context()))
	testkit.WantError(t, "attach after the committed end", testkit.ErrorOf(d.runtime("r").Attach(t.Context(), calls.Claim{}, d.id)), calls.ErrEnded)
	testkit.WantError(t, "observe after both streams are deleted", testkit.ErrorOf(d.runtime("o").Observe(d.id, "").Receive(t.Context())), calls.ErrEnded)
}

// A channel credential remembers its last 1,024 uses. The eviction of a use keeps a later
// use of the same body.
func usesAreBounded(t *testing.T, opts Options) {
	const remembered = 1024
	d := newCallbackFixture(t, opts, nil)
	shared := d.await(calls.AwaitOptions{Scope: wire.ScopeChannel})
	uses := 0
	use := func(body string) {
		t.Helper()
		uses++
		delivery := d.delivery(shared, body)
		delivery.Entries = delivery.Entries[:1]
		if status, _ := d.deliver(delivery); status != callback.Routed {
			t.Fatalf("use %d: %s, want %s", uses, status, callback.Routed)
		}
	}
	use("reused")
	first := d.delivery(shared, "reused")
	d.forgetUse(first.Digest + " " + first.BodyDigest) // the window has passed, but use 1 is not deleted yet
	use("reused")
	for uses <= remembered {
		use(fmt.Sprint(uses + 1))
	}
	d.expect(shared, "reused", callback.Duplicate) // use 2
	for uses < remembered+10 {
		use(fmt.Sprint(uses + 1))
	}
	d.expect(shared, fmt.Sprint(uses), callback.Duplicate)
	d.expect(shared, "11", callback.Duplicate)
	d.expect(shared, "10", callback.Routed)
	for uses < 2*remembered+100 {
		use(fmt.Sprint(uses + 1))
	}
	if n := d.number("HLEN", kv.MetaKey(d.id)); n > 2*remembered {
		t.Errorf("%d fields of meta are kept, want less than two for each use that is remembered", n)
	}
}

func backpressure(t *testing.T, opts Options) {
	limits := map[string]func(*wire.ChannelLimits){
		"entries": func(l *wire.ChannelLimits) { l.BacklogEntries = 5 },
		"bytes":   func(l *wire.ChannelLimits) { l.BacklogBytes = 400 },
	}
	for name, change := range limits {
		s := newChannelFixture(t, opts, change)
		s.attach("a")
		sent := 0
		fill := func() {
			t.Helper()
			for ; s.frame("a", fmt.Sprint(sent)) == channel.Appended; sent++ {
				if sent > 100 {
					t.Fatalf("%s: no backpressure after 100 frames", name)
				}
			}
			s.expectFrame("a", fmt.Sprint(sent), channel.Backpressure)
		}
		fill()
		s.expectFrame("a", "0", channel.Duplicate)
		for range 50 { // reconnecting must not fill the backlog either
			s.attach("a")
			s.detach("a")
		}
		s.attach("a")
		if entries, err := s.runtime("observer").Entries(t.Context(), s.id, "", 100); err != nil || len(entries) > 20 {
			t.Errorf("%s: %d entries, %v, want at most 20", name, len(entries), err)
		}
		oldest, err := s.runtime("observer").Entries(t.Context(), s.id, "", 1)
		testkit.Must(t, err)
		if err := s.runtime("observer").Observe(s.id, "").Commit(t.Context(), oldest[0].Position); !errors.Is(err, calls.ErrClaimLost) {
			t.Errorf("%s: commit by an observer: %v, want ErrClaimLost", name, err)
		}
		c := s.attachRuntime("r")
		_, half := s.receive(c, fmt.Sprint(sent/2))
		testkit.Must(t, c.Commit(t.Context(), half))
		s.expectFrame("a", fmt.Sprint(sent), channel.Backpressure)
		for d, err := c.Receive(t.Context()); ; d, err = c.Receive(t.Context()) {
			if err == nil {
				err = c.Commit(t.Context(), d.Position)
			}
			testkit.Must(t, err)
			if s.frame("a", fmt.Sprint(sent)) == channel.Appended {
				break
			}
		}
		sent++
		s.receive(c, fmt.Sprint(sent-1))
		fill()
		committed := s.field(kv.MetaKey(s.id), "committed")
		testkit.NoError(t, "commit an old position", c.Commit(t.Context(), half))
		testkit.Equal(t, "committed position", s.field(kv.MetaKey(s.id), "committed"), committed)
		for _, position := range []string{"1000-1", "1001-1"} {
			testkit.WantError(t, fmt.Sprintf("commit %s", position), c.Commit(t.Context(), position), calls.ErrUnknownPosition)
		}
	}
}

// Bytes are counted exactly, however many entries are committed at a time. An error
// would add up and cause backpressure in long conversations.
func committedBytes(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	var frames []channel.Frame
	for i := range 100 {
		name := strings.Repeat("x", i*i%37) + fmt.Sprint(i)
		frames = append(frames, channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)})
	}
	for first := 0; first < len(frames); first += 20 {
		s.append("a", frames[first:first+20]...)
	}
	c, bytes := s.attachRuntime("r"), 0
	steps := []int{1, 2, 16, 17, 18, 31, 50, 64, 65, 80, 99, 101} // the first entry is "connected"
	for n := 1; n <= 101; n++ {
		d, err := c.Receive(t.Context())
		testkit.Must(t, err)
		if n == 1 {
			bytes += len(s.entry(wire.KindSession, "connected"))
		} else {
			bytes += len(frames[n-2].Entry)
		}
		if !slices.Contains(steps, n) {
			continue
		}
		testkit.Must(t, c.Commit(t.Context(), d.Position))
		testkit.Equal(t, "committed entries and bytes", strings.Join(s.flow()[5:7], " "), fmt.Sprint(n, " ", bytes))
	}
}

func trimming(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	const frames = 1500
	for i := 0; i < frames; i += 100 {
		batch := make([]channel.Frame, 100)
		for j := range batch {
			name := fmt.Sprint(i + j)
			batch[j] = channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)}
		}
		s.append("a", batch...)
	}
	read := func(c *calls.Channel, first, last int) {
		t.Helper()
		for i := first; i <= last; i++ {
			d, err := c.Receive(t.Context())
			if err == nil && (i%10 == 0 || i == last) {
				err = c.Commit(t.Context(), d.Position)
			}
			if err != nil || i >= 0 && d.Entry.Event != fmt.Sprint(i) {
				t.Fatalf("entry %d is %+v, %v, want event %d", i, d.Entry, err, i)
			}
		}
	}
	read(s.attachRuntime("r"), -1, 199)
	read(s.attachRuntime("r"), 200, frames-1) // continues at the committed position; more entries than are kept for observers
	kept, err := s.runtime("observer").Entries(t.Context(), s.id, "", frames)
	if err != nil || len(kept) < 1000 || len(kept) > 1200 || kept[len(kept)-1].Entry.Event != fmt.Sprint(frames-1) {
		t.Errorf("%d entries kept for observers, %v, want 1000 to 1200 and the newest", len(kept), err)
	}
}

// After a failover to a lagging replica, the newest entries are lost.
func rollback(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")
	c := s.attachRuntime("r")
	_, position := s.receive(c, "1")
	testkit.Must(t, c.Commit(t.Context(), position))
	restore := s.snapshot()
	s.frame("a", "2")
	_, lost := s.receive(c, "2")
	restore()
	s.event("3")
	testkit.WantError(t, "commit a lost position", c.Commit(t.Context(), lost), calls.ErrUnknownPosition)
	if d, err := c.Receive(t.Context()); !errors.Is(err, calls.ErrLost) {
		t.Errorf("received %+v, %v, want ErrLost", d, err)
	}
	s.expectReceived(s.attachRuntime("r"), "3")
}
