package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/kv"
)

// remembered fills the memory for message ids, each way, more than twice.
func remembered(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.take("r")
	const frames, messages, together = 9_000, 2_300, 100
	for n := 0; n < frames; n += together {
		batch := make([]channel.Frame, together)
		for i := range batch {
			batch[i] = channel.Frame{MessageID: fmt.Sprint(n + i), Entry: []byte("{}")}
		}
		s.append("a", batch...)
	}
	send := func(from, to int) {
		t.Helper()
		var waits []func() error
		for n := from; n < to; n++ {
			waits = append(waits, c.SendAsync(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, MessageID: fmt.Sprint(n), Chat: []byte(`{}`)}))
		}
		for _, wait := range waits {
			if err := wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(0, messages)

	s.raw(func(ctx context.Context, client rueidis.Client) error {
		keys := kv.ChannelKeys(s.id)
		for _, key := range append(keys[:5:5], keys[7:]...) {
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if err != nil || ttl <= s.limits.IdleMs || ttl > s.limits.IdleMs+s.limits.KeepMs {
				t.Errorf("%s lives for %d ms, %v", key, ttl, err)
			}
		}
		return nil
	})
	for n, want := range map[int]channel.Outcome{frames - 1: channel.Duplicate, frames - 4096: channel.Duplicate, 0: channel.Appended} {
		if got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Entry: []byte("{}")})[0]; got != want {
			t.Errorf("frame %d of %d again: %s", n, frames, got)
		}
	}
	last := func() string { return s.attach("a").Head.ID }
	before := last()
	if send(messages-1024, messages); last() != before {
		t.Error("a message was sent twice")
	}
	if send(0, 1); last() == before {
		t.Error("ids are remembered for ever")
	}
}
