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
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func sessionOwner(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	for _, connection := range []string{"", "a"} {
		if got := s.frame(connection, "unknown channel"); got != channel.Lost {
			t.Errorf("frame of connection %q on an unknown channel: %s, want %s", connection, got, channel.Lost)
		}
	}
	subscribe(t, s.store)
	subscriber := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s.attach("a")
	reject := func(a *channel.AttachRequest) { a.Reject = true }
	refused := s.attachment("b")
	refused.Reject = true
	if _, err := s.channels.Attach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("attach a second connection: %v, want %s", err, fault.SessionInUse)
	}
	if err := s.channels.CheckAttach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("check of a second connection: %v, want %s", err, fault.SessionInUse)
	}
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); err != nil || subscriber.recorded() != "" {
		t.Errorf("check of a connection that replaces the owner: %v; published %q, want nothing", err, subscriber.recorded())
	}
	refused.Succeeds = "other"
	if _, err := s.channels.Attach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("connection that succeeds a non-owner: %v, want %s", err, fault.SessionInUse)
	}
	s.attach("b", reject, func(a *channel.AttachRequest) { a.Succeeds = "a" })
	testkit.Until(t, "the subscriber is replaced", func() bool { return subscriber.recorded() == "replaced:b" })
	s.attach("c")
	testkit.Until(t, "the subscriber is replaced", func() bool { return subscriber.recorded() == "replaced:b replaced:c" })
	for connection, want := range map[string]channel.Outcome{"a": channel.NotOwner, "b": channel.NotOwner, "c": channel.Appended} {
		if got := s.frame(connection, connection); got != want {
			t.Errorf("frame of %s: %s, want %s", connection, got, want)
		}
	}
	s.attach("c", func(a *channel.AttachRequest) { a.Lease = time.Millisecond })
	d := s.attachment("d")
	d.Reject = true
	testkit.Until(t, "the lease expires", func() bool { return s.channels.CheckAttach(t.Context(), d) == nil })
	s.attach("d", reject)
	if got := s.renew("c", false).Outcome; got != channel.NotOwner {
		t.Errorf("renew an expired lease: %s, want %s", got, channel.NotOwner)
	}
	if got := s.renew("d", false).Outcome; got != channel.Owned {
		t.Errorf("renew: %s, want %s", got, channel.Owned)
	}
	for _, connection := range []string{"a", "d", "d"} {
		s.detach(connection)
	}
	s.attach("e", reject)
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
	s.frame("e", "last")
	if events, _ := s.receive(s.attachRuntime("r"), "last"); strings.Join(events, " ") != "connected connected connected c connected disconnected connected disconnected connected last" {
		t.Errorf("the runtime received %v, want [connected connected connected c connected disconnected connected disconnected connected last]", events)
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
	if got := s.frame("b", "2"); got != channel.Duplicate {
		t.Errorf("duplicate of another connection: %s, want %s", got, channel.Duplicate)
	}
	appendAll := func(connection string, frames ...channel.Frame) string {
		t.Helper()
		for i := range frames {
			frames[i].Entry = s.entry(wire.KindFrame, frames[i].MessageID)
		}
		return fmt.Sprint(s.append(connection, frames...))
	}
	got := appendAll("b", channel.Frame{MessageID: "3"}, channel.Frame{MessageID: "2"}, channel.Frame{MessageID: "4", Switch: wire.DisableTextChat},
		channel.Frame{MessageID: "5", Chat: true}, channel.Frame{MessageID: "3", Chat: true}, channel.Frame{MessageID: "6"})
	if want := "[appended repeated appended chat_disabled repeated appended]"; got != want {
		t.Errorf("outcomes of one batch: %s, want %s", got, want)
	}
	if got, want := appendAll("a", channel.Frame{MessageID: "7"}, channel.Frame{MessageID: "8"}), "[not_owner not_owner]"; got != want {
		t.Errorf("frames of a replaced connection: %s, want %s", got, want)
	}
	if events, _ := s.receive(s.attachRuntime("r"), "6"); strings.Join(events, " ") != "connected 1 2 connected 3 4 6" {
		t.Errorf("the runtime received %v, want [connected 1 2 connected 3 4 6]", events)
	}
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
		c, err := runtime.Attach(t.Context(), session.id)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range frames {
				if got := session.frame("a", fmt.Sprint(i)); got != channel.Appended {
					t.Errorf("frame: %s, want %s", got, channel.Appended)
				}
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
