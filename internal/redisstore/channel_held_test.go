package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/testkit"
)

// script runs a channel script and returns its reply as words.
func (s *channelFixture) script(name string, args ...string) (words []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) (err error) {
		reply := rueidis.NewLuaScript(lua.Channel(name)).Exec(ctx, client, kv.ChannelKeys(s.id), append(args, ""))
		if words, err = reply.AsStrSlice(); err != nil {
			word, single := reply.ToString()
			words, err = []string{word}, single
		}
		return err
	})
	return words
}

// hold sends a message that the browser may not see yet, and returns its ID.
func (s *channelFixture) hold(text string) string {
	s.Helper()
	return s.script("send", "", "-h", "", "", `{"chat":{"text":"`+text+`"}}`)[0]
}

// A message that replicas do not have yet is not visible: a failover could lose it.
func heldMessages(t *testing.T, opts Options) {
	for name, show := range map[string]func(s *channelFixture, held string){
		"confirmed":                     func(s *channelFixture, held string) { s.script("confirm", held) },
		"confirmed twice":               func(s *channelFixture, held string) { s.script("confirm", held); s.script("confirm", held) },
		"claimed by another runtime":    func(s *channelFixture, _ string) { s.attachRuntime("other") },
		"followed by a visible message": func(s *channelFixture, _ string) { s.script("send", "", "-", "", "", `{"chat":{"text":"3"}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newChannelFixture(t, opts, nil)
			start := s.attach("c").Head
			s.script("send", "", "-", "", "", `{"chat":{"text":"1"}}`)
			visible := s.attach("c", resume(start)).Head
			subscribe(t, s.store)
			subscriber := &browser{}
			stop, err := s.channels.Subscribe(t.Context(), s.id, subscriber)
			if err != nil {
				t.Fatal(err)
			}
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
		s.attach("c")
		s.hold("1")
		if got := s.script("confirm", "1-1")[0]; got != "lost" {
			t.Errorf("confirm of a message that does not exist: %s, want lost", got)
		}
	})
}
