package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
)

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
			if got := s.frame("a", fmt.Sprint(sent)); got != channel.Backpressure {
				t.Errorf("%s: %s, want %s", name, got, channel.Backpressure)
			}
		}
		fill()
		if got := s.frame("a", "0"); got != channel.Duplicate {
			t.Errorf("%s: duplicate frame: %s, want %s", name, got, channel.Duplicate)
		}
		for range 50 { // reconnecting must not fill the backlog either
			s.attach("a")
			s.detach("a")
		}
		s.attach("a")
		if entries, err := s.runtime("observer").Entries(t.Context(), s.id, "", 100); err != nil || len(entries) > 20 {
			t.Errorf("%s: %d entries, %v, want at most 20", name, len(entries), err)
		}
		oldest, err := s.runtime("observer").Entries(t.Context(), s.id, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.runtime("observer").Observe(s.id, "").Commit(t.Context(), oldest[0].Position); !errors.Is(err, calls.ErrClaimLost) {
			t.Errorf("%s: commit by an observer: %v, want ErrClaimLost", name, err)
		}
		c := s.attachRuntime("r")
		_, half := s.receive(c, fmt.Sprint(sent/2))
		if err := c.Commit(t.Context(), half); err != nil {
			t.Fatal(err)
		}
		if got := s.frame("a", fmt.Sprint(sent)); got != channel.Backpressure {
			t.Errorf("%s: after committing half: %s, want %s", name, got, channel.Backpressure)
		}
		for d, err := c.Receive(t.Context()); ; d, err = c.Receive(t.Context()) {
			if err == nil {
				err = c.Commit(t.Context(), d.Position)
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.frame("a", fmt.Sprint(sent)) == channel.Appended {
				break
			}
		}
		sent++
		s.receive(c, fmt.Sprint(sent-1))
		fill()
		if err := c.Commit(t.Context(), half); err != nil {
			t.Errorf("commit an old position: %v", err)
		}
		for _, position := range []string{"1000-1", "1001-1"} {
			if err := c.Commit(t.Context(), position); !errors.Is(err, calls.ErrUnknownPosition) {
				t.Errorf("commit %s: %v, want ErrUnknownPosition", position, err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			bytes += len(s.entry(wire.KindSession, "connected"))
		} else {
			bytes += len(frames[n-2].Entry)
		}
		if !slices.Contains(steps, n) {
			continue
		}
		if err := c.Commit(t.Context(), d.Position); err != nil {
			t.Fatal(err)
		}
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			flow, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(s.id)).Field("flow").Build()).ToString()
			if got, want := strings.Join(strings.Fields(flow)[5:7], " "), fmt.Sprint(n, " ", bytes); got != want {
				t.Errorf("committed entries and bytes: %s, want %s", got, want)
			}
			return err
		})
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
			if err == nil {
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
	if err := c.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	restore := s.snapshot()
	s.frame("a", "2")
	_, lost := s.receive(c, "2")
	restore()
	s.event("3")
	if err := c.Commit(t.Context(), lost); !errors.Is(err, calls.ErrUnknownPosition) {
		t.Errorf("commit a lost position: %v, want ErrUnknownPosition", err)
	}
	if d, err := c.Receive(t.Context()); !errors.Is(err, calls.ErrLost) {
		t.Errorf("received %+v, %v, want ErrLost", d, err)
	}
	if events, _ := s.receive(s.attachRuntime("r"), "3"); strings.Join(events, " ") != "3" {
		t.Errorf("after attaching again: %v, want [3]", events)
	}
}
