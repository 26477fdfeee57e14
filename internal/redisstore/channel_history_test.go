package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func historyPages(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	start := s.attach("a").Head
	c := s.attachRuntime("r")
	const count = 40
	for range count {
		s.send(c, strings.Repeat("x", 20_000))
	}
	resumed := s.attach("a", resume(start))
	pages, cursor := [][]channel.Message{resumed.Missed}, start
	for len(pages[len(pages)-1]) > 0 {
		page := pages[len(pages)-1]
		for _, m := range page {
			if number, _, _ := strings.Cut(m.Cursor.ID, "-"); number <= "0" || m.Cursor == cursor {
				t.Errorf("message %s follows %s", m.Cursor.ID, cursor.ID)
			}
			cursor = m.Cursor
		}
		next, complete, err := s.channels.Since(t.Context(), s.id, cursor)
		if err != nil || !complete {
			t.Fatalf("read after %s: complete %v, %v", cursor.ID, complete, err)
		}
		pages = append(pages, next)
	}
	total := 0
	for _, page := range pages {
		size := 0
		for _, m := range page {
			size += len(m.JSON)
		}
		if total += len(page); size > 128<<10+21_000 {
			t.Errorf("page of %d bytes, want at most 128 KiB and one message", size)
		}
	}
	if total != count || cursor != resumed.Head {
		t.Errorf("%d messages up to %v, want %d up to %v", total, cursor, count, resumed.Head)
	}
}

func cursors(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, func(l *wire.ChannelLimits) { l.HistoryMessages = 3 })
	start := s.attach("c0")
	if start.Recovered || start.Head.ID != "" || start.Head.Epoch == "" || !start.TextChat {
		t.Fatalf("first attach: %+v, want text chat, an epoch and no messages", start)
	}
	c := s.attachRuntime("r")
	s.send(c, "1", "2")
	greeted := s.attach("c0", resume(start.Head))
	if !greeted.Recovered || texts(greeted.Missed) != "1 2" {
		t.Fatalf("resume from the start: %+v, want messages 1 and 2", greeted)
	}
	at := []channel.Cursor{start.Head, greeted.Missed[0].Cursor, greeted.Missed[1].Cursor}
	s.send(c, "3", "4", "5") // 3, 4 and 5 are kept; 2 is the newest trimmed message
	head := s.attach("c0").Head
	number, ms, _ := strings.Cut(head.ID, "-")
	other := newChannelFixture(t, opts, nil)
	foreign := other.attach("x").Head
	cases := map[string]struct {
		cursor *channel.Cursor
		missed string // "-": not recovered
	}{
		"none":                {nil, "-"},
		"current":             {&head, ""},
		"old but kept":        {&at[2], "3 4 5"},
		"trimmed":             {&at[1], "-"},
		"trimmed start":       {&at[0], "-"},
		"from the future":     {&channel.Cursor{Epoch: head.Epoch, ID: "6-" + ms}, "-"},
		"with the wrong time": {&channel.Cursor{Epoch: head.Epoch, ID: number + "-1"}, "-"},
		"of another session":  {&channel.Cursor{Epoch: foreign.Epoch, ID: head.ID}, "-"},
		"garbage":             {&channel.Cursor{Epoch: head.Epoch, ID: "5-0; FLUSHALL\x00"}, "-"},
		"huge":                {&channel.Cursor{Epoch: head.Epoch, ID: strings.Repeat("9", 30) + "-1"}, "-"},
		"without a time":      {&channel.Cursor{Epoch: head.Epoch, ID: "4"}, "-"},
		"range":               {&channel.Cursor{Epoch: head.Epoch, ID: "-"}, "-"},
		"without an epoch":    {&channel.Cursor{ID: head.ID}, "-"},
		"empty":               {&channel.Cursor{}, "-"},
	}
	observer := s.runtime("observer")
	for name, want := range cases {
		got := s.attach("c1", func(a *channel.AttachRequest) { a.Resume = want.cursor })
		if got.Head != head || got.Recovered != (want.missed != "-") || texts(got.Missed) != strings.Trim(want.missed, "-") {
			t.Errorf("attach, cursor %s: %+v, want head %+v and missed %q", name, got, head, want.missed)
		}
		entries, err := observer.Entries(t.Context(), s.id, got.LastEntry, 1)
		if err != nil || len(entries) != 1 || (entries[0].Entry.Recovered != nil) != (want.cursor != nil && !got.Recovered) {
			t.Errorf("attach, cursor %s: entry %+v, %v; want recovered:false only after a failed resume", name, entries, err)
		}
		if want.cursor == nil {
			continue
		}
		missed, ok, err := s.channels.Since(t.Context(), s.id, *want.cursor)
		if err != nil || ok != got.Recovered || texts(missed) != texts(got.Missed) {
			t.Errorf("since, cursor %s: %q, ok %t, %v, want %q", name, texts(missed), ok, err, want.missed)
		}
	}
	t.Run("age", func(t *testing.T) {
		s := newChannelFixture(t, opts, func(l *wire.ChannelLimits) { l.HistoryMs = 200 })
		head := s.attach("c").Head
		s.send(s.attachRuntime("r"), "old")
		testkit.Until(t, "the history expires", func() bool { return !s.attach("c", resume(head)).Recovered })
	})
}

func wipedStore(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("c")
	c := s.attachRuntime("r")
	s.send(c, "1", "2")
	before := s.attach("c").Head
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, node := range client.Nodes() {
			if err := node.Do(ctx, node.B().Flushall().Build()).Error(); err != nil {
				return err
			}
		}
		return nil
	})
	s.expectFrame("c", "lost", channel.Lost)
	s.expectRenewal("c", channel.Lost)
	if _, ok, err := s.channels.Since(t.Context(), s.id, before); ok || err != nil {
		t.Errorf("since a cursor from before the wipe: ok %t, %v, want false", ok, err)
	}
	testkit.WantError(t, "send", c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value("{}")}), calls.ErrLost)
	if got := s.attach("c", resume(before)); got.Recovered || len(got.Missed) != 0 || !got.Offer || got.Head.Epoch == before.Epoch {
		t.Errorf("attach: %+v, want a new epoch without messages, and an offer", got)
	}
	testkit.WantError(t, "commit with a claim from before the wipe", c.Commit(t.Context(), "1-1"), calls.ErrLost)
}

// A runtime that did not receive a reply sends its messages again, a whole batch if need
// be. The store may have trimmed its history in between.
func resentMessages(t *testing.T, opts Options) {
	for name, trim := range map[string]func(s *channelFixture){
		"unchanged history":         func(*channelFixture) {},
		"history trimmed by a read": func(s *channelFixture) { s.attach("a", resume(channel.Cursor{})) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, func(l *wire.ChannelLimits) { l.HistoryMessages = 70 })
			s.attach("a")
			known := s.script("send", "", "-", "", "", "first", "{}")[0]
			const count = 60
			args := []string{"send", "", strings.Repeat("-", count), known, ""}
			for i := range count {
				args = append(args, fmt.Sprint("id-", i))
			}
			args = append(args, slices.Repeat([]string{`{"chat":"` + strings.Repeat("x", 4<<10) + `"}`}, count)...)
			sent := s.script(args[0], args[1:]...)
			trim(s)
			again := s.script(args[0], args[1:]...)
			if sent[0] != again[0] || strings.Join(again[1:], " ") != strings.Repeat("repeated ", count-1)+"repeated" {
				t.Errorf("newest message %s, after the repetition %s with outcomes %q", sent[0], again[0], again[1:])
			}
		})
	}
}

func commitWithMessage(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	s.attach("a")
	c := s.attachRuntime("r")
	_, position := s.receive(c, "connected")
	for _, id := range []string{"first", "second"} { // with the second, nothing is left to commit
		s.script("send", s.claimToken(), "-", "", position, id, "{}")
		testkit.Equal(t, "committed position", s.field(kv.MetaKey(s.id), "committed"), position)
		testkit.Equal(t, "committed entries", s.flow()[5], "1")
	}
}

func liveMessages(t *testing.T, opts Options) {
	s := newChannelFixture(t, opts, nil)
	subscribe(t, s.store)
	other, _ := connect(t, opts)
	subscribe(t, other)
	s.attach("a")
	c := s.attachRuntime("r")
	s.send(c, "early")
	var recorders [2]*browser
	for i, store := range []*Store{s.store, other} {
		recorders[i] = &browser{}
		stop, err := NewChannels(store, s.limits).Subscribe(t.Context(), s.id, recorders[i])
		testkit.Must(t, err)
		defer stop()
	}
	message := wire.ChannelMessage{Type: wire.TypeChat, MessageID: "-9223372036854775808", Chat: jsontext.Value(`{"text":"once"}`)}
	for range 3 {
		testkit.Must(t, c.Send(t.Context(), message))
	}
	testkit.Must(t, c.SendAudio(t.Context(), jsontext.Value(`{"n":1}`)))
	s.send(c, "last")
	for _, rec := range recorders {
		testkit.Until(t, "messages", func() bool { return strings.HasSuffix(rec.recorded(), "last") })
		// A cluster may deliver the earlier message late.
		if strings.TrimPrefix(rec.recorded(), ">1:early ") != "1>2:once audio 2>3:last" {
			t.Errorf("received %q, want 1>2:once audio 2>3:last", rec.recorded())
		}
	}
	if late := s.attach("b", resume(channel.Cursor{Epoch: "*"})); texts(late.Missed) != "early once last" {
		t.Errorf("history: %q, want early once last", texts(late.Missed))
	}
	for _, bad := range []wire.ChannelMessage{{Type: wire.TypeAudio, Audio: jsontext.Value("{}")}, {Type: wire.TypeChat}, {Type: "other"}, {Type: wire.TypePing},
		{Type: wire.TypeChat, Chat: jsontext.Value(`[]`)}, {Type: wire.TypeChat, MessageID: "a b", Chat: jsontext.Value(`{}`)},
		{Type: wire.TypeChat, Chat: jsontext.Value(`{"t":"` + strings.Repeat("x", calls.MaxMessageBytes) + `"}`)}} {
		if err := c.Send(t.Context(), bad); err == nil {
			t.Errorf("sent an invalid %.80s message", bad.Type)
		}
	}
	// Messages of other runtimes may contain line breaks. Subscribers then get a gap
	// and read the message from the history.
	s.script("send", "", "-", "", "", "id", "{\n}")
	for _, rec := range recorders {
		testkit.Until(t, "a gap", func() bool { return strings.HasSuffix(rec.recorded(), "gap") })
	}
	// In the other direction, Receive merges audio into the entries.
	testkit.Until(t, "audio", func() bool {
		testkit.Must(t, s.channels.SendAudio(t.Context(), s.id, []byte(`{"type":"audio","audio":{"n":2}}`)))
		d, err := c.Receive(t.Context())
		testkit.Must(t, err)
		return d.Position == "" && d.Entry.Kind == wire.KindFrame && string(d.Entry.Message.Audio) == `{"n":2}`
	})
}
