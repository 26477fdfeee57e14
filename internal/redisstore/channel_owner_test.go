package redisstore

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func sessionOwner(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.expectFrame("a", "unknown channel", channel.Lost)
	subscribe(t, s.store)
	subscriber := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
	testkit.Must(t, err)
	defer stop()
	s.attach("a")
	reject := func(a *channel.AttachRequest) { a.RejectDuplicate = true }
	rejected := s.attachment("b")
	rejected.RejectDuplicate = true
	testkit.WantFault(t, "attach a second connection", testkit.ErrorOf(s.channels.Attach(t.Context(), rejected)), fault.SessionInUse)
	testkit.WantFault(t, "check of a second connection", s.channels.CheckAttach(t.Context(), rejected), fault.SessionInUse)
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); err != nil || subscriber.recorded() != "" {
		t.Errorf("check of a connection that replaces the owner: %v; published %q, want nothing", err, subscriber.recorded())
	}
	rejected.Predecessor = "other"
	testkit.WantFault(t, "connection that resumes a non-owner", testkit.ErrorOf(s.channels.Attach(t.Context(), rejected)), fault.SessionInUse)
	s.attach("b", reject, func(a *channel.AttachRequest) { a.Predecessor = "a" })
	testkit.Until(t, "the subscriber is replaced", func() bool { return subscriber.recorded() == "replaced:b" })
	s.attach("c")
	testkit.Until(t, "the subscriber is replaced", func() bool { return subscriber.recorded() == "replaced:b replaced:c" })
	for connection, want := range map[string]channel.Outcome{"a": channel.NotOwner, "b": channel.NotOwner, "c": channel.Appended} {
		s.expectFrame(connection, connection, want)
	}
	s.attach("c", func(a *channel.AttachRequest) { a.Lease = time.Millisecond })
	d := s.attachment("d")
	d.RejectDuplicate = true
	testkit.Until(t, "the lease expires", func() bool { return s.channels.CheckAttach(t.Context(), d) == nil })
	s.attach("d", reject)
	s.expectRenewal("c", channel.NotOwner)
	s.expectRenewal("d", channel.Owned)
	for _, connection := range []string{"a", "d", "d"} {
		s.detach(connection)
	}
	s.attach("e", reject)
	s.attach("e") // it does not replace itself
	s.attach("g")
	testkit.Until(t, "the subscriber is replaced", func() bool { return strings.HasSuffix(subscriber.recorded(), "replaced:g") })
	testkit.Equal(t, "replaced", subscriber.recorded(), "replaced:b replaced:c replaced:g")
	for _, change := range []func(*channel.AttachRequest){
		func(r *channel.AttachRequest) { r.TeamID = "other" },
		func(r *channel.AttachRequest) { r.EndpointID = "other" },
	} {
		foreign := s.attachment("f")
		change(&foreign)
		if _, err := s.channels.Attach(t.Context(), foreign); err == nil || s.channels.CheckAttach(t.Context(), foreign) == nil {
			t.Error("another team could attach")
		}
	}
	s.frame("g", "last")
	s.expectReceived(s.attachRuntime("r"), "connected connected connected c connected disconnected connected disconnected connected connected connected last")
}

// A runtime polls a channel again when the lease of its connection expires: nobody else notices that an instance has died.
func ownerLeaseIsPolled(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a", func(a *channel.AttachRequest) { a.Lease = 15 * time.Second })
	c := s.attachRuntime("r")
	s.receive(c, "connected")
	again := func() time.Duration {
		c.Check()
		_, again, err := c.Poll(s.Context(), 1, 1, true)
		testkit.Must(t, err)
		return again
	}
	if got := again(); got > 15*time.Second {
		t.Errorf("polls after %s, want at most the lease of 15s", got)
	}
	s.attach("a")
	s.await(c, calls.AwaitOptions{TTL: 10 * time.Second})
	if got := again(); got > 10*time.Second {
		t.Errorf("polls after %s, want at most the 10s of the work item", got)
	}
}

func framesOnce(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	if got := []channel.Outcome{s.frame("a", "1"), s.frame("a", "1"), s.frame("a", "2"), s.frame("a", "1")}; !slices.Equal(got,
		[]channel.Outcome{channel.Appended, channel.Duplicate, channel.Appended, channel.Duplicate}) {
		t.Errorf("outcomes %v, want appended, repeated, appended, repeated", got)
	}
	s.attach("b") // message IDs are shared by connections
	s.expectFrame("b", "2", channel.Duplicate)
	appendAll := func(connection string, frames ...channel.Frame) string {
		t.Helper()
		for i := range frames {
			frames[i].Entry = s.entry(wire.KindFrame, frames[i].MessageID)
		}
		return fmt.Sprint(s.append(connection, frames...))
	}
	got := appendAll("b", channel.Frame{MessageID: "3"}, channel.Frame{MessageID: "2"}, channel.Frame{MessageID: "4", Switch: wire.DisableTextChat},
		channel.Frame{MessageID: "5", Chat: true}, channel.Frame{MessageID: "3", Chat: true}, channel.Frame{MessageID: "6"})
	testkit.Equal(t, "outcomes of one batch", got, "[appended repeated appended chat_disabled repeated appended]")
	testkit.Equal(t, "frames of a replaced connection", appendAll("a", channel.Frame{MessageID: "7"}, channel.Frame{MessageID: "8"}), "[not_owner not_owner]")
	s.expectReceived(s.attachRuntime("r"), "connected 1 2 connected 3 4 6")
}

func textChat(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	n := 0
	browser := func(command string) {
		t.Helper()
		n++
		if got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Switch: command, Entry: []byte("{}")}); got[0] != channel.Appended {
			t.Errorf("%s: %s, want %s", command, got, channel.Appended)
		}
	}
	runtime := func(command string) {
		t.Helper()
		if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeControl, Control: jsontext.Value(`{"command":"` + command + `"}`)}); err != nil {
			t.Error(err)
		}
	}
	expect := func(on bool) {
		t.Helper()
		n++
		got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Chat: true, Entry: []byte("{}")})[0]
		if (got == channel.Appended) != on || (got == channel.ChatDisabled) == on {
			t.Errorf("chat frame: %s, want text chat on: %t", got, on)
		}
		if s.attach("a").TextChat != on {
			t.Errorf("attach returned text chat on: %t, want %t", !on, on)
		}
	}
	expect(true)
	browser(wire.DisableTextChat)
	expect(false)
	browser(wire.EnableTextChat)
	expect(true)
	runtime(wire.DisableTextChat)
	expect(false)
	browser(wire.EnableTextChat)
	expect(false)
	browser(wire.DisableTextChat)
	browser(wire.EnableTextChat)
	expect(false)
	runtime("mute")
	expect(false)
	runtime(wire.EnableTextChat)
	expect(true)
	browser(wire.DisableTextChat)
	runtime(wire.EnableTextChat)
	expect(true)
}

func frameOrder(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	const connections, frames = 10, 40 // few enough for the embedded store on a busy machine
	runtime := s.runtime("r")
	var wg sync.WaitGroup
	for range connections {
		session := *s
		session.id, session.owners = uuid.NewString(), map[string]channel.Owner{}
		session.attach("a")
		c, err := runtime.Attach(t.Context(), calls.Claim{}, session.id)
		testkit.Must(t, err)
		wg.Go(func() {
			for i := range frames {
				session.expectFrame("a", fmt.Sprint(i), channel.Appended)
			}
		})
		wg.Go(func() {
			want := []string{"connected"}
			for i := range frames {
				want = append(want, fmt.Sprint(i))
			}
			if events, _ := session.receive(c, fmt.Sprint(frames-1)); !slices.Equal(events, want) {
				t.Errorf("the runtime received %v, want %v", events, want)
			}
		})
	}
	wg.Wait()
}

func presence(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	expect := func(situation string, connected ...string) {
		t.Helper()
		got, ended, err := s.channels.Presence(t.Context(), []string{uuid.NewString(), s.id, uuid.NewString()})
		if err != nil || !slices.Equal(got, connected) || len(ended) > 0 {
			t.Errorf("%s: connected %v, ended %v, %v, want %v", situation, got, ended, err, connected)
		}
	}
	expect("no connection yet")
	s.attach("first")
	expect("connected", s.id)
	s.detach("first")
	expect("after detach")
	s.attach("second", func(a *channel.AttachRequest) { a.Lease = time.Millisecond })
	testkit.Until(t, "the lease expires", func() bool {
		got, _, err := s.channels.Presence(t.Context(), []string{s.id})
		return err == nil && len(got) == 0
	})
	s.attach("third")
	testkit.Must(t, s.channels.EndChannel(t.Context(), s.id, "revoked"))
	if got, ended, err := s.channels.Presence(t.Context(), []string{uuid.NewString(), s.id}); err != nil || len(got) > 0 || !slices.Equal(ended, []string{s.id}) {
		t.Errorf("ended channel: connected %v, ended %v, %v, want only ended", got, ended, err)
	}
	if got, ended, err := s.channels.Presence(t.Context(), nil); err != nil || len(got)+len(ended) > 0 {
		t.Errorf("empty request: connected %v, ended %v, %v, want neither", got, ended, err)
	}
}

// messageIDs sends more messages, in both directions, than are remembered. The latest IDs are
// still known, the first ones are not.
func messageIDs(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	const frames, messages, batchSize = 9_000, 2_300, 100
	for n := 0; n < frames; n += batchSize {
		batch := make([]channel.Frame, batchSize)
		for i := range batch {
			batch[i] = channel.Frame{MessageID: fmt.Sprint(n + i), Entry: []byte("{}")}
		}
		s.append("a", batch...)
	}
	send := func(from, to int) {
		t.Helper()
		for n := from; n < to; n += batchSize {
			var batch []wire.ChannelMessage
			for i := n; i < min(to, n+batchSize); i++ {
				batch = append(batch, wire.ChannelMessage{Type: wire.TypeChat, MessageID: fmt.Sprint(i), Chat: []byte(`{}`)})
			}
			testkit.Must(t, c.Send(t.Context(), batch...))
		}
	}
	send(0, messages)

	s.expectTTL(kv.ChannelKeys(s.id)...)
	for n, want := range map[int]channel.Outcome{frames - 1: channel.Duplicate, frames - 4095: channel.Duplicate, 0: channel.Appended} {
		testkit.Equal(t, fmt.Sprintf("duplicate of frame %d of %d", n, frames), s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Entry: []byte("{}")})[0], want)
	}
	// The store need not have forgotten the oldest IDs yet.
	testkit.Equal(t, "duplicate of the newest frame that is too old", s.append("a", channel.Frame{MessageID: fmt.Sprint(frames - 4096), Entry: []byte("{}")})[0], channel.Appended)
	last := func() string { return s.attach("a").Head.ID }
	before := last()
	if send(messages-1024, messages); last() != before {
		t.Error("a duplicate message was sent")
	}
	if send(0, 1); last() == before {
		t.Error("the first message ID is still known")
	}
}

// boundedMessageIDs reconnects after every 255 frames, so that no frame makes the number of
// entries a round one. Newer IDs sort before older ones: a store that returns all fields in order
// must not look only at the first ones, which are all remembered.
func boundedMessageIDs(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	const round, limit = 256, 4096
	for range round {
		s.attach("a")
	}
	for n := range 4 * limit / round {
		batch := make([]channel.Frame, round-1)
		for i := range batch {
			batch[i] = channel.Frame{MessageID: fmt.Sprintf("%05d", 10*limit-n*round-i), Entry: []byte("{}")}
		}
		s.append("a", batch...)
		s.attach("a")
	}
	if fields := s.number("HLEN", kv.MetaKey(s.id)); fields > 2*limit {
		t.Errorf("meta has %d fields, want less than two for each ID that is remembered", fields)
	}
}
