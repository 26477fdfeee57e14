package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// snapshot returns a function that restores all keys of the channel, as a failover
// does that loses the newest writes. IDs that are added later have other times.
func (s *channelFixture) snapshot() (restore func()) {
	s.Helper()
	var commands [][]string
	keys := kv.ChannelKeys(s.id)
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for i, key := range keys {
			commands = append(commands, []string{"DEL", key})
			var err error
			switch i {
			case 0:
				var fields map[string]string
				fields, err = client.Do(ctx, client.B().Hgetall().Key(key).Build()).AsStrMap()
				command := []string{"HSET", key} // all fields at once: scripts rely on them
				for name, value := range fields {
					command = append(command, name, value)
				}
				commands = append(commands, command)
			default:
				var items []rueidis.XRangeEntry
				items, err = client.Do(ctx, client.B().Xrange().Key(key).Start("-").End("+").Build()).AsXRange()
				commands = append(commands, []string{"XADD", key, "0-1", "", ""}, []string{"XDEL", key, "0-1"})
				for _, item := range items {
					command := []string{"XADD", key, item.ID}
					for name, value := range item.FieldValues {
						command = append(command, name, value)
					}
					slices.Reverse(command[3:]) // the order of two fields is entry or message, then total
					if len(command) == 5 || command[4] == "total" {
						slices.Reverse(command[3:])
					}
					commands = append(commands, command)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return func() {
		s.Helper()
		later := time.Now().Add(5 * time.Millisecond)
		testkit.Until(s.T, "the clock advances", func() bool { return time.Now().After(later) })
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			for _, command := range commands {
				if err := client.Do(ctx, client.B().Arbitrary(command[0]).Keys(command[1]).Args(command[2:]...).Build()).Error(); err != nil {
					return fmt.Errorf("%q: %w", command, err)
				}
			}
			return nil
		})
	}
}

// Data was acknowledged and then lost, and only one connection or runtime knows of
// it. It notices the loss as soon as it uses the store again, and then both sides
// are notified.
func losses(t *testing.T, opts Options) {
	loseFrame := func(s *channelFixture, _ *calls.Channel) { s.frame("a", "2") }
	loseMessage := func(s *channelFixture, c *calls.Channel) { s.detach("a"); s.send(c, "2") }
	isLost := func(err error) bool { return errors.Is(err, calls.ErrLost) }
	for name, tt := range map[string]struct {
		lose   func(*channelFixture, *calls.Channel)
		notice func(*channelFixture, *calls.Channel) bool
		lease  time.Duration // of the claim; a minute by default
	}{
		"frame, found by the next frame": {lose: loseFrame, notice: func(s *channelFixture, _ *calls.Channel) bool {
			return s.frame("a", "3") == channel.Lost
		}},
		"frame, found by the next frame after its number was used again": {lose: loseFrame, notice: func(s *channelFixture, _ *calls.Channel) bool {
			s.event("other")
			return s.frame("a", "3") == channel.Lost
		}},
		"frame, found by a heartbeat": {lose: loseFrame, notice: func(s *channelFixture, _ *calls.Channel) bool {
			return s.renew("a", false).Outcome == channel.Lost
		}},
		"frame, found when the connection detaches": {lose: loseFrame, notice: func(s *channelFixture, _ *calls.Channel) bool {
			s.detach("a")
			return true
		}},
		"message, found by the next message": {lose: loseMessage, notice: func(s *channelFixture, c *calls.Channel) bool {
			return isLost(c.Send(s.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: []byte("{}")}))
		}},
		"message, found by the renewal of the claim": {lose: loseMessage, lease: 5 * time.Second, notice: func(s *channelFixture, c *calls.Channel) bool {
			return isLost(s.receiveError(c))
		}},
		"received entry, found by Receive": {lose: func(s *channelFixture, c *calls.Channel) {
			s.detach("a")
			s.receive(c, "disconnected")
		}, lease: 5 * time.Second, notice: func(s *channelFixture, c *calls.Channel) bool {
			return isLost(s.receiveError(c))
		}},
		"work item, found by the next one": {lose: func(s *channelFixture, c *calls.Channel) { s.await(c, calls.AwaitOptions{}) },
			notice: func(s *channelFixture, c *calls.Channel) bool {
				_, err := c.Await(s.Context(), calls.AwaitOptions{})
				return isLost(err)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, nil)
			head := s.attach("a").Head
			c := s.attachRuntime("r", func(o *calls.Options) { o.Lease = cmp.Or(tt.lease, o.Lease) })
			s.frame("a", "1")
			restore := s.snapshot()
			tt.lose(s, c)
			restore()
			if !tt.notice(s, c) {
				t.Error("the loss was not noticed")
			}
			if err := c.Commit(t.Context(), "1-1"); !isLost(err) {
				t.Errorf("commit: %v, want ErrLost", err)
			}
			if got := s.attach("b", resume(head)); got.Recovered {
				t.Error("a cursor from before the loss was resumed")
			}
			if tt.lease == 0 {
				testkit.WantError(t, "attach of another runtime", testkit.ErrorOf(s.runtime("other").Attach(t.Context(), calls.Claim{}, s.id)), calls.ErrClaimed)
			}
			if again := s.attachRuntime("r"); !c.LostAt.IsZero() || again.LostAt.IsZero() {
				t.Errorf("time of the loss: %v before it, %v after it", c.LostAt, again.LostAt)
			}
		})
	}
}

// The connection that knows of the loss was replaced meanwhile. Its successor is
// notified, once.
func lossFoundByReplacedConnection(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	head := s.attach("a").Head
	c := s.attachRuntime("r")
	s.frame("a", "1")
	restore := s.snapshot()
	s.frame("a", "2")
	restore()
	if got := s.attach("b", resume(head)); !got.Recovered {
		t.Error("the successor was not recovered before the loss is known")
	}
	s.detach("a")
	s.expectRenewal("b", channel.Lost)
	testkit.WantError(t, "the runtime", c.Commit(t.Context(), "1-1"), calls.ErrLost)
	s.attach("c", resume(head))
	s.detach("a") // knows nothing of the new epoch
	s.expectRenewal("c", channel.Owned)
}

// Two runtimes had the claim, and both find the loss.
func lossReportedOnce(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	epoch := s.attach("a").Head.Epoch
	check := func() string {
		s.script("check_claim", "", "token", "", epoch, "1-1", "", "", "")
		return s.field(kv.MetaKey(s.id), "epoch")
	}
	reported := check()
	s.setField("lostAt", "unchanged")
	if again := check(); reported == epoch || again != reported || s.field(kv.MetaKey(s.id), "lostAt") != "unchanged" {
		t.Errorf("epochs %s, %s and %s, want a new one once", epoch, reported, again)
	}
}

// event adds an entry to the runtime stream that no frame caused.
func (s *channelFixture) event(name string) {
	s.Helper()
	owner := s.owner("a")
	if _, _, err := s.channels.Append(s.Context(), channel.Owner{ChannelID: s.id, ConnectionID: "a", Number: owner.Number},
		[]channel.Frame{{MessageID: name, Entry: s.entry(wire.KindFrame, name)}}); err != nil {
		s.Fatal(err)
	}
}

// receiveError receives until an error occurs and returns it.
func (s *channelFixture) receiveError(c *calls.Channel) (err error) {
	for err == nil {
		_, err = c.Receive(s.Context())
	}
	return err
}

// await registers a work item.
func (s *channelFixture) await(c *calls.Channel, o calls.AwaitOptions) calls.WorkItem {
	s.Helper()
	item, err := c.Await(s.Context(), o)
	if err != nil {
		s.Fatalf("await: %v", err)
	}
	return item
}

// A work item was registered and then lost. The runtime is notified with the next
// renewal, finds out which items are open, and awaits the lost one again.
func lostWorkItem(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	attach := func() *calls.Channel {
		t.Helper()
		return s.attachRuntime("r", func(o *calls.Options) { o.Lease = 5 * time.Second })
	}
	c := attach()
	options := func(id string) calls.AwaitOptions {
		return calls.AwaitOptions{WorkItemID: id, Token: calls.NewToken(), Kind: wire.LLMItem}
	}
	s.await(c, options("kept"))
	restore := s.snapshot()
	lost := options("lost")
	s.await(c, lost)
	restore()
	testkit.WantError(t, "receive", s.receiveError(c), calls.ErrLost)
	c = attach()
	items, err := c.WorkItems(t.Context())
	if err != nil || len(items) != 1 || items[0].WorkItemID != "kept" || items[0].Kind != wire.LLMItem || items[0].Scope != wire.ScopeItem ||
		time.Until(time.UnixMilli(items[0].Deadline)) < time.Minute || items[0].Parked {
		t.Errorf("open items: %+v, %v; want only the kept one", items, err)
	}
	for range 2 { // again with the same ID and token
		if item := s.await(c, lost); item.Token != lost.Token {
			t.Errorf("await again: token %q, want %q", item.Token, lost.Token)
		}
	}
	if items, err = c.WorkItems(t.Context()); err != nil || len(items) != 2 {
		t.Errorf("open items: %+v, %v; want 2", items, err)
	}
}

// A failover lasts longer than the lost work item's time to live.
func lostExpiredWorkItem(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	restore := s.snapshot()
	lost := s.await(c, calls.AwaitOptions{TTL: time.Second})
	restore()
	testkit.Until(t, "the item expires", func() bool { return time.Now().After(lost.ExpiresAt) })
	testkit.WantError(t, "await", testkit.ErrorOf(c.Await(t.Context(), calls.AwaitOptions{})), calls.ErrLost)
}

func lostConnection(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	restore := s.snapshot()
	s.attach("b")
	restore()
	s.expectRenewal("b", channel.Lost)
	s.expectFrame("b", "1", channel.Lost)
	s.attach("c")
	s.expectRenewal("b", channel.NotOwner)
}

// The instance of a connection dies. The runtime is notified when the lease expires.
func expiredLease(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a", func(a *channel.AttachRequest) { a.Lease = 200 * time.Millisecond })
	c := s.attachRuntime("r", func(o *calls.Options) { o.Lease = 5 * time.Second }) // it looks every third of it
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, want := range []string{"connected", "disconnected"} {
		if d, err := c.Receive(ctx); err != nil || d.Entry.Event != want || d.Entry.Kind != wire.KindSession || d.Entry.ChannelID != s.id {
			t.Fatalf("received %s, %v; want %s", d.JSON, err, want)
		}
	}
	s.expectRenewal("a", channel.Expired)
	s.expectFrame("a", "1", channel.Expired)
	if connected, _, err := s.channels.Presence(t.Context(), []string{s.id}); err != nil || len(connected) != 0 {
		t.Errorf("presence: %v, %v; want none", connected, err)
	}
	s.attach("b")
	s.expectRenewal("a", channel.NotOwner)
}

// A call that arrives after its deadline, or after a newer request was granted,
// has no effect.
func lateCalls(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	past := fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli())
	run := func(script string, args ...string) error {
		var err error
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			err = rueidis.NewLuaScript(kv.Script(script)).Exec(ctx, client, kv.ChannelKeys(s.id), args).Error()
			return nil
		})
		return err
	}
	connect := func(id, requestedAt, deadline string) error {
		args := append([]string{id, "", "", requestedAt, "60000", "", "", "", `{"kind":"session"}`, "", "epoch", "team", "endpoint", "chat", "", "", "{}"}, kv.LimitArgs(s.limits)...)
		return run("connect", append(args, deadline)...)
	}
	wantLate := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), "LATE") {
			t.Errorf("%s: %v, want LATE", what, err)
		}
	}
	tooLate := "0 " + past
	wantLate("connect after its deadline", connect("late", "", tooLate))
	future := fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())
	if err := connect("late", "", future+" "+future); err == nil || !strings.HasPrefix(err.Error(), "CLOCK") {
		t.Errorf("connect by a clock that is ahead: %v, want CLOCK", err)
	}
	for _, id := range []string{"cancelled before the channel is open", "cancelled"} {
		id = strings.ReplaceAll(id, " ", "-")
		testkit.Must(t, s.channels.Detach(t.Context(), channel.Owner{ChannelID: s.id, ConnectionID: id}, s.entry(wire.KindSession, "disconnected")))
		wantLate("connect "+id, connect(id, "", ""))
		if ttl := s.number("PTTL", kv.MetaKey(s.id)); ttl <= 0 {
			t.Errorf("%s: the key expires in %d ms", id, ttl)
		}
		s.attach("a")
	}
	wantLate("connect requested before the owner", connect("late", past, ""))
	s.expectFrame("a", "1", channel.Appended)
	s.detach("a")
	wantLate("connect requested before a connection that has detached", connect("late", past, ""))
	s.attach("a")

	c := s.attachRuntime("r")
	wantLate("claim after its deadline", run("claim", "r", "late", "60000", "attach", "", tooLate))
	testkit.NoError(t, "claim requested before the current one", run("claim", "r", "late", "60000", "attach", past, ""))
	s.send(c, "still claimed")

	digest := strings.Repeat("d", 64)
	wantLate("await after its deadline", run("await", "", digest, "bot", "item", "late", "60000", "{}", tooLate))
	if items, err := c.WorkItems(t.Context()); err != nil || len(items) != 0 {
		t.Errorf("open items: %v, %v; want none", items, err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(time.Millisecond))
	defer cancel()
	<-ctx.Done()
	if _, err := s.channels.Attach(ctx, s.attachment("late")); err == nil || fault.Is(err, fault.SessionInUse) {
		t.Errorf("attach with an expired context: %v", err)
	}
}
