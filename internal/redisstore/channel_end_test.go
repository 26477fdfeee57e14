package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func endedChannel(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	subscribe(t, s.store)
	subscriber := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
	testkit.Must(t, err)
	defer stop()
	testkit.NoError(t, "end an unknown channel", s.channels.EndChannel(t.Context(), s.id, "early"))
	s.attach("a")
	s.frame("a", "1")
	c := s.attachRuntime("r")
	s.await(c, calls.AwaitOptions{WorkItemID: "item"})
	for range 2 {
		testkit.Must(t, s.channels.EndChannel(t.Context(), s.id, "revoked"))
	}
	testkit.Until(t, "the subscriber is closed", func() bool { return subscriber.recorded() == "closed:revoked" })
	testkit.WantFault(t, "attach", testkit.ErrorOf(s.channels.Attach(t.Context(), s.attachment("b"))), fault.SessionEnded)
	testkit.WantFault(t, "check", s.channels.CheckAttach(t.Context(), s.attachment("b")), fault.SessionEnded)
	s.expectFrame("a", "2", channel.Ended)
	if got := s.renew("a", false); got.Outcome != channel.Ended || got.Offer {
		t.Errorf("renew: %+v, want %s and no offer", got, channel.Ended)
	}
	epoch := s.field(kv.MetaKey(s.id), "epoch")
	s.script("detach", "a", "{}", "99-1", epoch, "")
	testkit.Equal(t, "epoch after a loss", s.field(kv.MetaKey(s.id), "epoch"), epoch)
	s.detach("a")
	testkit.WantError(t, "send", c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeStatus, Status: jsontext.Value("{}")}), calls.ErrEnded)
	testkit.NoError(t, "end", c.End(t.Context(), "again"))
	events, last := s.receive(c, "revoked")
	if strings.Join(events, " ") != "connected 1 ended revoked" {
		t.Errorf("the runtime received %v, want [connected 1 ended revoked]", events)
	}
	testkit.WantError(t, "receive", testkit.ErrorOf(c.Receive(t.Context())), calls.ErrEnded)
	testkit.NoError(t, "commit", c.Commit(t.Context(), last))
	testkit.Equal(t, "the channel has ended for its runtime", c.Ended(), true)
	renewal := s.script("claim", "r", s.claimToken(), "60000", "renew", "", "", "1@item", last, epoch, "")
	testkit.Equal(t, "renewal after the committed end", renewal[0], "claimed")
	testkit.WantError(t, "attach after the committed end", testkit.ErrorOf(s.runtime("r").Attach(t.Context(), calls.Claim{}, s.id)), calls.ErrEnded)
	for _, from := range []string{last, ""} {
		observer, ended := s.runtime("o").Observe(s.id, from), error(nil)
		for ended == nil {
			_, ended = observer.Receive(t.Context())
		}
		testkit.WantError(t, fmt.Sprintf("observer from position %q", from), ended, calls.ErrEnded)
	}
}

// setIdle makes the channel idle since the given time ago.
func (s *channelFixture) setIdle(ago time.Duration) {
	s.Helper()
	flow := s.flow()
	flow[0], flow[2] = "0", fmt.Sprint(time.Now().Add(24*time.Hour-ago).UnixMilli())
	s.setField("flow", strings.Join(flow, " "))
}

func (s *channelFixture) flow() []string {
	s.Helper()
	return strings.Fields(s.field(kv.MetaKey(s.id), "flow"))
}

func idleChannel(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "0")
	c := s.attachRuntime("r")
	testkit.Must(t, c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, MessageID: "1", Chat: jsontext.Value("{}")}))
	testkit.Must(t, testkit.ErrorOf(c.Await(t.Context(), calls.AwaitOptions{})))
	s.expectTTL(kv.ChannelKeys(s.id)...)
	for i := range 3 { // 69 hours in total
		s.setIdle(23 * time.Hour)
		s.expectFrame("a", fmt.Sprint("busy", i), channel.Appended)
		s.expectFrame("a", fmt.Sprint("busier", i), channel.Appended)
	}
	s.setIdle(25 * time.Hour)
	testkit.WantFault(t, "check of an idle channel", s.channels.CheckAttach(t.Context(), s.attachment("b")), fault.SessionEnded)
	s.expectFrame("a", "late", channel.Ended)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	var last calls.Delivery
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			if e := last.Entry; !errors.Is(err, calls.ErrEnded) || e.Kind != wire.KindChannelEnded || e.ChannelID != s.id || e.Reason != "idle" || e.At == 0 {
				t.Errorf("receive: %v, last entry %s, want ErrEnded after channel_ended with reason idle", err, last.JSON)
			}
			return
		}
		last = d
	}
}

func openChannel(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	r := s.runtime("r")
	call := wire.Open{Request: wire.Request{Channel: s.id}, Team: "team", Endpoint: "endpoint", CallID: "call", TransactionID: "transaction", Profile: []byte(`{}`)}
	c, err := r.Open(t.Context(), calls.Claim{}, call)
	if err != nil || c.CallID != "call" || c.TransactionID != "transaction" {
		t.Fatalf("open: %+v, %v, want call ID and transaction ID of %+v", c, err, call)
	}
	testkit.WantError(t, "attach to an unknown channel", testkit.ErrorOf(r.Attach(t.Context(), calls.Claim{}, "unknown:"+s.id)), calls.ErrNotFound)
	testkit.WantError(t, "end of an unknown channel", r.Observe("unknown:"+s.id, "").End(t.Context(), "x"), calls.ErrNotFound)
	for _, invalid := range []string{"", "}", "a}b"} {
		_, err := r.Attach(t.Context(), calls.Claim{}, invalid)
		observer := r.Observe(invalid, "")
		_, receiveErr := observer.Receive(t.Context())
		for operation, err := range map[string]error{"attach": err, "receive": receiveErr, "end": observer.End(t.Context(), "x"),
			"send": observer.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")})} {
			testkit.WantError(t, fmt.Sprintf("%s with channel ID %q", operation, invalid), err, calls.ErrNotFound)
		}
	}
	for _, change := range []func(*wire.Open){
		func(o *wire.Open) { o.Team = "other" },
		func(o *wire.Open) { o.Endpoint = "other" },
	} {
		foreign := call
		change(&foreign)
		testkit.WantError(t, "open by another team", testkit.ErrorOf(r.Open(t.Context(), calls.Claim{}, foreign)), calls.ErrOtherTeam)
	}
	testkit.WantError(t, "open by another runtime", testkit.ErrorOf(s.runtime("other").Open(t.Context(), calls.Claim{}, call)), calls.ErrClaimed)
	// The same runtime after restarts. The old claim with the short lease is renewed, and found lost, soon.
	if c, err = s.runtime("r", func(o *calls.Options) { o.Lease = time.Second }).Open(t.Context(), calls.Claim{}, call); err != nil {
		t.Fatal(err)
	}
	again, err := s.runtime("r").Open(t.Context(), calls.Claim{}, call)
	testkit.Must(t, err)
	testkit.WantError(t, "receive with the old claim", testkit.ErrorOf(c.Receive(t.Context())), calls.ErrClaimLost)
	item, err := again.Await(t.Context(), calls.AwaitOptions{})
	testkit.Must(t, err)
	_, awaitErr := c.Await(t.Context(), calls.AwaitOptions{})
	for name, err := range map[string]error{
		"commit": c.Commit(t.Context(), "1-1"), "end": c.End(t.Context(), "x"), "await": awaitErr, "cancel": c.Cancel(t.Context(), item.ID),
		"send": c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")}),
	} {
		testkit.WantError(t, fmt.Sprintf("%s with the old claim", name), err, calls.ErrClaimLost)
	}
	testkit.Must(t, again.Close(t.Context()))
	testkit.NoError(t, "close with the old claim", c.Close(t.Context()))
	next := s.attachRuntime("next")
	observer := s.runtime("observer").Observe(s.id, "")
	s.send(observer, "on behalf")
	s.attach("a")
	s.frame("a", "1")
	_, seen := s.receive(observer, "1")
	testkit.WantError(t, "commit by an observer", observer.Commit(t.Context(), seen), calls.ErrClaimLost)
	s.expectReceived(next, "connected 1")
	testkit.Must(t, observer.End(t.Context(), "done"))
	testkit.WantError(t, "open an ended channel", testkit.ErrorOf(r.Open(t.Context(), calls.Claim{}, call)), calls.ErrEnded)
}
