package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// startReplicated starts a server and a replica of it.
func startReplicated(t *testing.T) (master, replica *testkit.Redis) {
	t.Helper()
	master = testkit.StartRedis(t)
	return master, testkit.StartReplica(t, master)
}

func TestFramesAndCallbacksWaitForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	d := newCallbackFixture(t, opts, nil)
	d.attach("a")
	d.expectFrame("a", "1", channel.Appended)
	item := d.await(calls.AwaitOptions{})
	replica.Freeze()
	frame := []channel.Frame{{MessageID: "2", Entry: d.entry(wire.KindFrame, "2")}}
	for range 2 { // the second one is a duplicate, which the replica does not have either
		if got, _, err := d.channels.Append(t.Context(), d.owner("a"), frame); !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("frame without the replica: %v, %v", got, err)
		}
	}
	if got, err := d.callbacks.Deliver(t.Context(), d.delivery(item, "x")); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("callback without the replica: %+v, %v", got, err)
	}
	replica.Thaw()
	testkit.Until(t, "the frame is a duplicate", func() bool {
		got, _, err := d.channels.Append(t.Context(), d.owner("a"), frame)
		return err == nil && got[0] == channel.Duplicate
	})
	if status, _ := d.deliver(d.delivery(item, "x")); status != callback.Duplicate && status != callback.Routed { // the first one may not have been run
		t.Errorf("callback with the replica: %s, want %s or %s", status, callback.Duplicate, callback.Routed)
	}
	d.expectEvents("connected 1 2 x")
}

func TestRuntimeWaitsForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	s := newChannelFixture(t, redisOptions(master), nil)
	s.attach("a")
	r := s.runtime("r", func(o *calls.Options) { o.MinReplicas = 1 })
	c, err := r.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	released, err := r.Open(t.Context(), calls.Claim{}, wire.Open{Request: wire.Request{Channel: s.id + "-released"}, Team: "team", Endpoint: "endpoint"})
	testkit.Must(t, err)
	s.send(c, "1")
	_, position := s.receive(c, "connected")
	item, err := c.Await(t.Context(), calls.AwaitOptions{})
	testkit.Must(t, err)
	replica.Freeze()
	message := wire.ChannelMessage{Type: wire.TypeChat, MessageID: "m", Chat: jsontext.Value(`{"text":"2"}`)}
	for name, operate := range map[string]func(context.Context) error{
		"send":   func(ctx context.Context) error { return c.Send(ctx, message) },
		"commit": func(ctx context.Context) error { return c.Commit(ctx, position) },
		"await": func(ctx context.Context) error {
			_, err := c.Await(ctx, calls.AwaitOptions{WorkItemID: "w"})
			return err
		},
		"cancel":  func(ctx context.Context) error { return c.Cancel(ctx, item.ID) },
		"release": func(ctx context.Context) error { return released.Close(ctx) },
		"open": func(ctx context.Context) error {
			_, err := r.Open(ctx, calls.Claim{}, wire.Open{Request: wire.Request{Channel: s.id + "-opened"}, Team: "team", Endpoint: "endpoint"})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := operate(ctx); err == nil || errors.Is(err, calls.ErrLost) {
			t.Errorf("%s without the replica: %v", name, err)
		}
		cancel()
	}
	history := func() string {
		messages, ok, err := s.channels.Since(t.Context(), s.id, channel.Cursor{Epoch: s.attach("b").Head.Epoch})
		if !ok || err != nil {
			t.Errorf("history: complete %t, %v", ok, err)
		}
		return texts(messages)
	}
	testkit.Equal(t, "history", history(), "1")
	c, err = r.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	testkit.Equal(t, "history after another claim without the replica", history(), "1")
	sent := make(chan error, 1)
	go func() { sent <- c.Send(t.Context(), message) }() // waits
	replica.Thaw()
	testkit.NoError(t, "send with the replica", <-sent)
	testkit.NoError(t, "commit with the replica", c.Commit(t.Context(), position))
	testkit.Equal(t, "history", history(), "1 2")
}

func TestReportsWaitForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	stream, _ := reports(t, opts)
	testkit.Must(t, stream.Append(t.Context(), []byte("1")))
	replica.Freeze()
	testkit.WantFault(t, "report without the replica", stream.Append(t.Context(), []byte("2")), fault.ServiceUnavailable)
	replica.Thaw()
	testkit.Until(t, "the report is appended", func() bool { return stream.Append(t.Context(), []byte("2")) == nil }) // counted once, by its ID
}

// A session that was deleted, or a call that was ended, stays so after a failover.
func TestEndsWaitForReplicas(t *testing.T) {
	t.Parallel()
	master, replica := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c, err := s.runtime("r", func(o *calls.Options) { o.MinReplicas = 1 }).Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	replica.Freeze()
	testkit.WantFault(t, "deletion without the replica", s.channels.EndChannel(t.Context(), s.id, "deleted"), fault.ServiceUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.End(ctx, "done"); err == nil {
		t.Error("the end is confirmed without the replica")
	}
	replica.Thaw()
	testkit.Until(t, "the session is deleted", func() bool { return s.channels.EndChannel(t.Context(), s.id, "deleted") == nil })
	reply := replica.MustDo("HGET", kv.MetaKey(s.id), "state")
	if state, err := reply.ToString(); err != nil || state != "ended" {
		t.Errorf("the replica has state %q, %v; want ended", state, err)
	}
}

// In a cluster each channel waits for the replicas of its own node, and follows its
// slot to another node.
func TestReplicasOfClusterNode(t *testing.T) {
	t.Parallel()
	c := testkit.StartRedisCluster(t)
	replica := c.AddReplica(c.Nodes[0])
	s := newChannelFixture(t, Options{RedisOptions: config.RedisOptions{Addrs: c.Addrs()}, MinReplicas: 1}, nil)
	frame := func(name string) error {
		_, _, err := s.channels.Append(t.Context(), s.owner("a"), []channel.Frame{{MessageID: name, Entry: s.entry(wire.KindFrame, name)}})
		return err
	}
	s.moveAway(c.Nodes[0])
	s.attach("a")
	testkit.WantFault(t, "frame on a node without replicas", frame("1"), fault.ServiceUnavailable)
	s.moveAway(c.Nodes[1])
	for { // to the first node
		if _, err := c.Nodes[0].Do("EXISTS", kv.MetaKey(s.id)); err == nil {
			break
		}
		s.moveAway(c.Nodes[1])
	}
	s.attach("a")
	testkit.NoError(t, "frame on a node with a replica", frame("1"))
	replica.MustDo("CLUSTER", "FAILOVER", "TAKEOVER")
	testkit.Until(t, "the replica is a master with a replica", func() bool {
		reply := replica.MustDo("INFO", "replication")
		info, _ := reply.ToString()
		return strings.Contains(info, "role:master") && strings.Contains(info, "state=online")
	})
	testkit.Until(t, "a frame after the failover", func() bool { return frame("2") == nil })
}

// script runs a channel script and returns its reply as words.
func (s *channelFixture) script(script string, args ...string) (words []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) (err error) {
		reply := rueidis.NewLuaScript(kv.Script(script)).Exec(ctx, client, kv.ChannelKeys(s.id), append(args, ""))
		if words, err = reply.AsStrSlice(); err != nil {
			word, _ := reply.ToString() // or a number
			words, err = []string{word}, reply.Error()
		}
		return err
	})
	return words
}

// claimToken returns the token of the channel's claim.
func (s *channelFixture) claimToken() string {
	s.Helper()
	return s.field(kv.MetaKey(s.id), "claimToken")
}

// hold sends a message that the browser may not see yet, and returns its ID.
func (s *channelFixture) hold(text string) string {
	s.Helper()
	return s.script("send", "", "-h", "", "", rand.Text(), `{"chat":{"text":"`+text+`"}}`)[0]
}

// A message that replicas do not have yet is not visible: a failover could lose it.
func heldMessages(t *testing.T, opts Options) {
	for name, show := range map[string]func(s *channelFixture, held string){
		"confirmed":       func(s *channelFixture, held string) { s.script("confirm", held) },
		"confirmed twice": func(s *channelFixture, held string) { s.script("confirm", held); s.script("confirm", held) },
		"claimed by another runtime": func(s *channelFixture, held string) {
			s.attachRuntime("other")
			testkit.Until(s.T, "the message is visible", func() bool { return s.attach("c").Head.ID == held })
		},
		"followed by a visible message": func(s *channelFixture, _ string) {
			s.script("send", "", "-", "", "", rand.Text(), `{"chat":{"text":"3"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, nil)
			s.attach("c")
			s.script("send", "", "-", "", "", rand.Text(), `{"chat":{"text":"0"}}`)
			start := s.attach("c").Head
			s.script("send", "", "-", "", "", rand.Text(), `{"chat":{"text":"1"}}`)
			visible := s.attach("c", resume(start)).Head
			subscribe(t, s.store)
			subscriber := &browser{}
			stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
			testkit.Must(t, err)
			defer stop()
			held := s.hold("2")
			if got := s.attach("c", resume(start)); got.Head != visible || texts(got.Missed) != "1" {
				t.Errorf("resumed with head %v and %q, want %v and message 1 only", got.Head, texts(got.Missed), visible)
			}
			if got, err := s.channels.Renew(t.Context(), s.owner("c"), time.Minute, false); err != nil || got.Newest != visible.ID {
				t.Errorf("renewed with newest message %+v, %v; want %s", got, err, visible.ID)
			}
			if missed, ok, err := s.channels.Since(t.Context(), s.id, visible); err != nil || !ok || len(missed) != 0 {
				t.Errorf("since: %q, %t, %v; want nothing", texts(missed), ok, err)
			}
			show(s, held)
			missed, ok, err := s.channels.Since(t.Context(), s.id, visible)
			if err != nil || !ok || len(missed) == 0 || missed[0].Cursor.ID != held {
				t.Errorf("since: %q, %t, %v; want message %s", texts(missed), ok, err, held)
			}
			testkit.Until(t, "the connection is notified", func() bool { return subscriber.recorded() != "" })
		})
	}
	t.Run("first message", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		start := s.attach("c").Head
		held := s.hold("1")
		if got := s.attach("c", resume(start)); got.Head != start || len(got.Missed) != 0 {
			t.Errorf("resumed with %+v, want nothing", got)
		}
		s.script("confirm", held)
		if got := s.attach("c", resume(start)); got.Head != (channel.Cursor{Epoch: start.Epoch, ID: held}) || texts(got.Missed) != "1" {
			t.Errorf("resumed with %+v, want message %s", got, held)
		}
	})
	t.Run("lost", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		epoch := s.attach("c").Head.Epoch
		s.hold("1")
		for early, isReported := range map[string]bool{"1": false, "": true} {
			s.setField("epoch", epoch)
			testkit.Equal(t, "confirm of a message that does not exist", s.script("confirm", "1-1", early)[0], "lost")
			testkit.Equal(t, "reported to both sides", s.field(kv.MetaKey(s.id), "epoch") != epoch, isReported)
		}
	})
	t.Run("confirmed in another order", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		start := s.attach("c").Head
		first, second := s.hold("1"), s.hold("2")
		s.hold("3")
		s.script("confirm", second)
		s.script("confirm", first)
		testkit.Equal(t, "visible messages", texts(s.attach("c", resume(start)).Missed), "1 2")
	})
	t.Run("more than a notice has", func(t *testing.T) {
		s := newChannelFixture(t, opts, nil)
		s.attach("c")
		subscribe(t, s.store)
		connection := &renewals{}
		stop, err := s.channels.Subscribe(t.Context(), s.id, connection)
		testkit.Must(t, err)
		defer stop()
		last := ""
		for range 20 {
			last = s.hold(strings.Repeat("x", 8<<10))
		}
		s.script("confirm", last)
		testkit.Until(t, "the connection is told to read the rest", func() bool { return connection.requested() > 0 })
	})
}

// cursorRecorder records the cursors of the messages that a subscriber receives.
type cursorRecorder struct{ recorder }

func (r *cursorRecorder) Messages(_ channel.Cursor, list []channel.Message) {
	for _, m := range list {
		r.note(m.Cursor.ID)
	}
}

func (*cursorRecorder) Audio([]byte)    {}
func (*cursorRecorder) Replaced(string) {}
func (*cursorRecorder) Closed(string)   {}
func (*cursorRecorder) Gap()            {}

// Messages that were sent at different times are shown together. A browser that resumes
// from one of them must know its own ID.
func heldMessageIDs(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("c")
	subscribe(t, s.store)
	subscriber := &cursorRecorder{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
	testkit.Must(t, err)
	defer stop()
	timeOf := func(id string) string { _, at, _ := strings.Cut(id, "-"); return at }
	ids := []string{s.hold("1")}
	for timeOf(ids[0]) == timeOf(ids[len(ids)-1]) {
		ids = append(ids, s.hold("next"))
	}
	s.script("confirm", ids[len(ids)-1])
	want := strings.Join(ids, " ")
	testkit.Until(t, "messages "+want, func() bool { return subscriber.recorded() == want })
}

// A failover can lose that a message was shown, and keep the message. The browser does not
// get it again, even if other data is lost.
func lostConfirmation(t *testing.T, opts Options) {
	for epoch, recovered := range map[string]bool{"": true, "before a loss": false} {
		s := newChannelFixture(t, opts, nil)
		s.attach("c")
		shown, unseen := s.hold("shown"), s.hold("unseen")
		current := s.attach("c").Head.Epoch
		got := s.attach("c", resume(channel.Cursor{Epoch: cmp.Or(epoch, current), ID: shown}))
		if want := (channel.Cursor{Epoch: current, ID: shown}); got.Recovered != recovered || got.Head != want || len(got.Missed) != 0 {
			t.Errorf("resumed from %v: %+v, want the same cursor and no messages", shown, got)
		}
		s.script("confirm", unseen)
		if missed, ok, err := s.channels.Since(t.Context(), s.id, got.Head); err != nil || !ok || texts(missed) != "unseen" {
			t.Errorf("since: %q, %t, %v; want the message that was not seen", texts(missed), ok, err)
		}
	}
}

// A failover loses a frame although a replica had it. The runtime finds that, and the connection
// then reports that it was acknowledged.
func TestLossOfAcknowledgedFrameDespiteReplicas(t *testing.T) {
	t.Parallel()
	master, _ := startReplicated(t)
	opts := redisOptions(master)
	opts.MinReplicas = 1
	s := newChannelFixture(t, opts, nil)
	head := s.attach("a").Head
	defer testkit.Start(t, func(ctx context.Context) { s.store.Subscribe(ctx) })()
	connection := &renewals{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, connection)
	testkit.Must(t, err)
	defer stop()
	c := s.attachRuntime("r", func(o *calls.Options) { o.MinReplicas, o.Lease = 1, 5*time.Second })
	restore := s.snapshot()
	s.frame("a", "acknowledged")
	s.receive(c, "acknowledged")
	restore()
	testkit.WantError(t, "the runtime", s.receiveError(c), calls.ErrLost)
	testkit.Until(t, "the connection is asked to check", func() bool { return connection.requested() > 0 })
	s.expectRenewal("a", channel.Lost)
	if got := s.attach("b", resume(head)); got.Recovered {
		t.Error("a cursor from before the loss was resumed")
	}
}
