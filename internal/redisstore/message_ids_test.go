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

// messageIDs sends more messages, in both directions, than two sets of message IDs
// hold. The latest IDs are still known, the first ones are not.
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
				t.Errorf("%s: TTL %d ms, %v, want at most idle time plus keep time", key, ttl, err)
			}
		}
		return nil
	})
	for n, want := range map[int]channel.Outcome{frames - 1: channel.Duplicate, frames - 4096: channel.Duplicate, 0: channel.Appended} {
		if got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Entry: []byte("{}")})[0]; got != want {
			t.Errorf("duplicate of frame %d of %d: %s, want %s", n, frames, got, want)
		}
	}
	last := func() string { return s.attach("a").Head.ID }
	before := last()
	if send(messages-1024, messages); last() != before {
		t.Error("a duplicate message was sent")
	}
	if send(0, 1); last() == before {
		t.Error("the first message ID is still known")
	}
}
