package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/channel"
	"telapi/internal/kv"
)

// asVersion1 leaves the channel as scripts of version 1 do: without the fields and the
// empty keys of version 2.
func (s *channelFixture) asVersion1() {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		keys := kv.ChannelKeys(s.id)
		for _, reply := range client.DoMulti(ctx,
			client.B().Hdel().Key(keys[0]).Field("inLast", "leasedTo", "offer", "requestedAt", "dropped").Build(),
			client.B().Del().Key(keys[4:]...).Build()) { // sent, work, forget, seenBefore, sentBefore
			if err := reply.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// frameOfVersion1 adds an entry as frame.lua of version 1 does.
func (s *channelFixture) frameOfVersion1(name string) {
	s.Helper()
	flow, entry := s.flow(), string(s.entry("frame", name))
	if len(flow) != 9 {
		s.Fatalf("flow has %d numbers: %v; version 1 needs 9", len(flow), flow)
	}
	number, _ := strconv.Atoi(flow[3])
	size, _ := strconv.Atoi(flow[4])
	flow[3], flow[4] = strconv.Itoa(number+1), strconv.Itoa(size+len(entry))
	id := fmt.Sprintf("%d-%d", number+1, time.Now().UnixMilli())
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		add := client.B().Xadd().Key(kv.RuntimeStreamKey(s.id)).Id(id).FieldValue().FieldValue("entry", entry).Build()
		save := client.B().Hset().Key(kv.MetaKey(s.id)).FieldValue().FieldValue("flow", strings.Join(flow, " ")).Build()
		for _, reply := range client.DoMulti(ctx, add, save) {
			if err := reply.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Scripts of both versions work on one channel during a rolling upgrade.
func sharedWithVersion1(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")
	s.asVersion1()
	s.frameOfVersion1("2")
	if got := s.renew("a", false).Outcome; got != channel.Owned {
		t.Fatalf("renew: %s, want %s", got, channel.Owned)
	}
	if got := s.existingKeys(); len(got) != 9 {
		t.Errorf("the channel has the keys %v, want 9", got)
	}
	c := s.attachRuntime("r")
	s.frame("a", "3") // after the lookup of the newest entry
	s.frameOfVersion1("4")
	s.frame("a", "5")
	s.frame("a", "6")
	if got := s.renew("a", false).Outcome; got != channel.Owned {
		t.Errorf("renew: %s, want %s", got, channel.Owned)
	}
	if got, _ := s.receive(c, "6"); !slices.Equal(got, []string{"connected", "1", "2", "3", "4", "5", "6"}) {
		t.Errorf("received %v", got)
	}
}

// An instance with scripts of version 1 takes an expired lease for a replacement.
func leaseOfVersion1(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	head := s.attach("a", func(a *channel.AttachRequest) { a.Lease = 0 }).Head
	s.asVersion1()
	if _, _, err := s.channels.Since(t.Context(), s.id, head); err != nil {
		t.Fatal(err)
	}
	if got := s.frame("a", "1"); got != channel.Appended {
		t.Errorf("frame: %s, want %s", got, channel.Appended)
	}
}

// commit.lua of version 1 removes entries and does not record which.
func trimmedByVersion1(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	text := strings.Repeat("x", 32<<10)
	for i := range 60 {
		s.append("a", channel.Frame{MessageID: fmt.Sprint(i), Entry: fmt.Appendf(nil, `{"kind":"frame","channelId":%q,"event":"%d","text":%q}`, s.id, i, text)})
	}
	_, position := s.receive(c, "30")
	s.asVersion1()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Xtrim().Key(kv.RuntimeStreamKey(s.id)).Minid().Exact().Threshold("20").Build()).Error()
	})
	for _, last := range []string{"", "58"} {
		if last != "" {
			_, position = s.receive(c, last)
		}
		if err := c.Commit(t.Context(), position); err != nil {
			t.Fatalf("commit %s: %v", position, err)
		}
	}
	if got, _ := s.receive(c, "59"); len(got) != 1 {
		t.Errorf("received %v, want 59", got)
	}
}

// Scripts of version 1 do not know that messages are held back, so they cannot show them.
func heldBeforeVersion1(t *testing.T, opts Options) {
	for name, use := range map[string]string{"claim": "claimToken", "send": "outLast"} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, nil)
			head := s.attach("a").Head
			held := s.hold("1")
			value, want := "another", "1"
			if use == "outLast" {
				number, _, _ := strings.Cut(held, "-")
				next, _ := strconv.Atoi(number)
				value, want = fmt.Sprintf("%d-%d", next+1, time.Now().UnixMilli()), "1 2"
				s.raw(func(ctx context.Context, client rueidis.Client) error {
					return client.Do(ctx, client.B().Xadd().Key(kv.HistoryKey(s.id)).Id(value).FieldValue().FieldValue("message", `{"chat":{"text":"2"}}`).Build()).Error()
				})
			}
			if found, _, err := s.channels.Since(t.Context(), s.id, head); err != nil || len(found) > 0 {
				t.Errorf("history while a message is held back: %q, %v, want none", texts(found), err)
			}
			s.raw(func(ctx context.Context, client rueidis.Client) error {
				return client.Do(ctx, client.B().Hset().Key(kv.MetaKey(s.id)).FieldValue().FieldValue(use, value).Build()).Error()
			})
			if found, _, err := s.channels.Since(t.Context(), s.id, head); err != nil || texts(found) != want {
				t.Errorf("history: %q, %v, want %q", texts(found), err, want)
			}
		})
	}
}
