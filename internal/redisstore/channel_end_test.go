package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

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
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := s.channels.EndChannel(t.Context(), s.id, "early"); err != nil {
		t.Errorf("end an unknown channel: %v", err)
	}
	s.attach("a")
	s.frame("a", "1")
	c := s.attachRuntime("r")
	for range 2 {
		if err := s.channels.EndChannel(t.Context(), s.id, "revoked"); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Until(t, "the subscriber is closed", func() bool { return subscriber.recorded() == "closed:revoked" })
	if _, err := s.channels.Attach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("attach: %v", err)
	}
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("check: %v", err)
	}
	if got := s.frame("a", "2"); got != channel.Ended {
		t.Errorf("frame: %s, want %s", got, channel.Ended)
	}
	if got := s.renew("a", false); got.Outcome != channel.Ended || got.Offer {
		t.Errorf("renew: %+v, want %s and no offer", got, channel.Ended)
	}
	s.detach("a")
	if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeStatus, Status: jsontext.Value("{}")}); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("send: %v, want ErrEnded", err)
	}
	if err := c.End(t.Context(), "again"); err != nil {
		t.Errorf("end: %v", err)
	}
	events, last := s.receive(c, "revoked")
	if strings.Join(events, " ") != "connected 1 ended revoked" {
		t.Errorf("the runtime received %v, want [connected 1 ended revoked]", events)
	}
	if _, err := c.Receive(t.Context()); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("receive: %v, want ErrEnded", err)
	}
	if err := c.Commit(t.Context(), last); err != nil {
		t.Errorf("commit: %v", err)
	}
	if _, err := s.runtime("r").Attach(t.Context(), s.id); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("attach after the committed end: %v, want ErrEnded", err)
	}
	for _, from := range []string{last, ""} {
		observer, ended := s.runtime("o").Observe(s.id, from), error(nil)
		for ended == nil {
			_, ended = observer.Receive(t.Context())
		}
		if !errors.Is(ended, calls.ErrEnded) {
			t.Errorf("observer from position %q: %v, want ErrEnded", from, ended)
		}
	}
}

// setIdle makes the channel idle since the given time ago.
func (s *channelFixture) setIdle(ago time.Duration) {
	s.Helper()
	flow := s.flow()
	flow[0], flow[2] = "0", fmt.Sprint(time.Now().Add(24*time.Hour-ago).UnixMilli())
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Hset().Key(kv.MetaKey(s.id)).FieldValue().FieldValue("flow", strings.Join(flow, " ")).Build()).Error()
	})
}

func (s *channelFixture) flow() (numbers []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		flow, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(s.id)).Field("flow").Build()).ToString()
		numbers = strings.Fields(flow)
		return err
	})
	return numbers
}

func idleChannel(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "0")
	c := s.attachRuntime("r")
	if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, MessageID: "1", Chat: jsontext.Value("{}")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Await(t.Context(), calls.AwaitOptions{}); err != nil {
		t.Fatal(err)
	}
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range kv.ChannelKeys(s.id)[:7] { // the others do not exist yet
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if err != nil || ttl <= s.limits.IdleMs || ttl > s.limits.IdleMs+s.limits.KeepMs {
				t.Errorf("%s: TTL %d ms, %v, want at most idle time plus keep time", key, ttl, err)
			}
		}
		return nil
	})
	for i := range 3 { // 69 hours in total
		s.setIdle(23 * time.Hour)
		if got := s.frame("a", fmt.Sprint("busy", i)); got != channel.Appended {
			t.Fatalf("frame on a busy channel: %s, want %s", got, channel.Appended)
		}
		if got := s.frame("a", fmt.Sprint("busier", i)); got != channel.Appended {
			t.Fatalf("frame on a busy channel: %s, want %s", got, channel.Appended)
		}
	}
	s.setIdle(25 * time.Hour)
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("check of an idle channel: %v", err)
	}
	if got := s.frame("a", "late"); got != channel.Ended {
		t.Errorf("frame on an idle channel: %s, want %s", got, channel.Ended)
	}
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
	call := calls.OpenOptions{ChannelID: s.id, TeamID: "team", EndpointID: "endpoint", CallID: "call", TransactionID: "transaction", Profile: []byte(`{}`)}
	c, err := r.Open(t.Context(), call)
	if err != nil || c.CallID != "call" || c.TransactionID != "transaction" {
		t.Fatalf("open: %+v, %v, want call ID and transaction ID of %+v", c, err, call)
	}
	if _, err := r.Attach(t.Context(), "unknown:"+s.id); !errors.Is(err, calls.ErrNotFound) {
		t.Errorf("attach to an unknown channel: %v, want ErrNotFound", err)
	}
	for _, invalid := range []string{"", "}", "a}b"} {
		_, err := r.Attach(t.Context(), invalid)
		observer := r.Observe(invalid, "")
		_, receiveErr := observer.Receive(t.Context())
		for operation, err := range map[string]error{"attach": err, "receive": receiveErr, "end": observer.End(t.Context(), "x"),
			"send": observer.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")})} {
			if !errors.Is(err, calls.ErrNotFound) {
				t.Errorf("%s with channel ID %q: %v, want ErrNotFound", operation, invalid, err)
			}
		}
	}
	for _, change := range []func(*calls.OpenOptions){
		func(o *calls.OpenOptions) { o.TeamID = "other" },
		func(o *calls.OpenOptions) { o.EndpointID = "other" },
	} {
		foreign := call
		change(&foreign)
		if _, err := r.Open(t.Context(), foreign); !errors.Is(err, calls.ErrOtherTeam) {
			t.Errorf("open by another team: %v, want ErrOtherTeam", err)
		}
	}
	if _, err := s.runtime("other").Open(t.Context(), call); !errors.Is(err, calls.ErrClaimed) {
		t.Errorf("open by another runtime: %v, want ErrClaimed", err)
	}
	// The same runtime after restarts. The old claim with the short lease is renewed, and found lost, soon.
	if c, err = s.runtime("r", func(o *calls.Options) { o.Lease = time.Second }).Open(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	again, err := s.runtime("r").Open(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(t.Context()); !errors.Is(err, calls.ErrClaimLost) {
		t.Errorf("receive with the old claim: %v, want ErrClaimLost", err)
	}
	item, err := again.Await(t.Context(), calls.AwaitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, awaitErr := c.Await(t.Context(), calls.AwaitOptions{})
	for name, err := range map[string]error{
		"commit": c.Commit(t.Context(), "1-1"), "end": c.End(t.Context(), "x"), "await": awaitErr, "cancel": c.Cancel(t.Context(), item.ID),
		"send": c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")}),
	} {
		if !errors.Is(err, calls.ErrClaimLost) {
			t.Errorf("%s with the old claim: %v, want ErrClaimLost", name, err)
		}
	}
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("close with the old claim: %v", err)
	}
	next := s.attachRuntime("next")
	observer := s.runtime("observer").Observe(s.id, "")
	s.send(observer, "on behalf")
	s.attach("a")
	s.frame("a", "1")
	_, seen := s.receive(observer, "1")
	if err := observer.Commit(t.Context(), seen); !errors.Is(err, calls.ErrClaimLost) {
		t.Errorf("commit by an observer: %v, want ErrClaimLost", err)
	}
	if events, _ := s.receive(next, "1"); strings.Join(events, " ") != "connected 1" {
		t.Errorf("the runtime received %v, want [connected 1]", events)
	}
	if err := observer.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(t.Context(), call); !errors.Is(err, calls.ErrEnded) {
		t.Errorf("open an ended channel: %v, want ErrEnded", err)
	}
}
