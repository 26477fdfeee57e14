package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/servers"
)

// Whether the short way for what is usual or the whole script takes it, what
// is answered and kept is the same to the letter.
func TestUsualFramesAndMessagesLeaveWhatTheWholeScriptsLeave(t *testing.T) {
	embedded, err := StartEmbedded(t.TempDir(), (&journal{}).logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(embedded.Close)
	for engine, opts := range map[string]Options{"embedded": embedded.Options((&journal{}).logger()), "redis": redisOptions(servers.StartRedis(t))} {
		t.Run(engine, func(t *testing.T) {
			short := func(l *wire.ChannelLimits) { l.HistoryMessages = 5 }
			usual, whole := newStage(t, opts, short), newStage(t, opts, short)
			whole.channels.frame = rueidis.NewLuaScript(lua.Channel("frame"))
			if a, b := usual.chatter(lua.FastChannel("send")), whole.chatter(lua.Channel("send")); a != b {
				t.Errorf("the usual scripts leave\n%s\nthe whole ones\n%s", a, b)
			}
		})
	}
}

// chatter has frames and messages come in many ways, and returns all that was
// answered and all that is kept.
func (s *stage) chatter(send string) string {
	s.attach("a")
	s.take("r")
	var story []string
	frames := func(connection string, ids ...string) {
		var list []channel.Frame
		for _, id := range ids {
			list = append(list, channel.Frame{MessageID: id, Entry: []byte(`{"said":"` + id + `"}`), Chat: strings.HasPrefix(id, "c")})
		}
		outcomes, err := s.channels.Append(s.Context(), s.id, connection, list)
		story = append(story, fmt.Sprint(outcomes, err))
	}
	newest := ""
	messages := func(letters, after, names string, texts ...string) {
		args := append([]string{"", letters, after, names}, texts...)
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			words, err := rueidis.NewLuaScript(send).Exec(ctx, client, kv.ChannelKeys(s.id), args).AsStrSlice()
			newest = words[0]
			story = append(story, strings.Join(words, " "))
			return err
		})
	}
	for n := range 300 { // past the places where either looks after its memory
		frames("a", fmt.Sprint("c", n), fmt.Sprint("f", n))
		messages("-", newest, "", fmt.Sprint("m", n))
	}
	frames("a", "c1", "new", "new", "f2", "last")
	frames("b", "foreign")
	before := newest
	messages("--", newest, "", "x1", "x2")
	messages("---", before, "", "x1", "x2", "x3")
	messages("--", newest, "", "twice", "twice")
	messages("--", "", "", "x3", "x4")
	messages("--", newest, "n1 -", "named", "x5")
	messages("-", newest, "n1", "named otherwise")
	messages("-d", newest, "", "x6", "off")
	frames("a", "c-off", "f-off")
	messages("e", newest, "", "on")
	frames("a", "c-on")

	s.raw(func(ctx context.Context, client rueidis.Client) error {
		keys := kv.ChannelKeys(s.id)
		fields, err := client.Do(ctx, client.B().Hgetall().Key(keys[0]).Build()).AsStrMap()
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			story = append(story, name+" = "+fields[name])
		}
		for _, key := range keys[1:3] {
			entries, readErr := client.Do(ctx, client.B().Xrange().Key(key).Start("-").End("+").Build()).AsXRange()
			for _, e := range entries {
				story = append(story, fmt.Sprint(e.ID, e.FieldValues))
			}
			err = errors.Join(err, readErr)
		}
		for _, key := range []string{keys[3], keys[4], keys[7], keys[8]} {
			ids, readErr := client.Do(ctx, client.B().Smembers().Key(key).Build()).AsStrSlice()
			slices.Sort(ids)
			story = append(story, strings.Join(ids, " "))
			err = errors.Join(err, readErr)
		}
		return err
	})
	text := regexp.MustCompile(`\d{13}`).ReplaceAllString(strings.Join(story, "\n"), "time")
	text = regexp.MustCompile(`(?m)^(claim|epoch).*$`).ReplaceAllString(text, "")
	return strings.ReplaceAll(text, s.id, "channel")
}
