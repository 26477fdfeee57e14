package redisstore

import (
	"fmt"
	"slices"
	"testing"

	"telapi/internal/callback"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

// The scripts and this package use the same words.
func TestReplyWordsOfScripts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scripts []string
		known   []any
	}{
		{[]string{"frame", "renew"}, []any{
			channel.Appended, channel.Duplicate, channel.ChatDisabled, channel.Backpressure, channel.Owned, channel.NotOwner,
			channel.Expired, channel.Ended, channel.Lost,
		}},
		{[]string{"callback", "stream", "check_credential"}, []any{
			callback.Routed, callback.Parked, callback.Invalid, callback.Ended, callback.Consumed, callback.Duplicate, callback.Cancelled,
			callback.Stale, callback.Backpressure, callback.NotParked, callback.Streaming, callback.Missing, callback.Usable,
		}},
		{[]string{"connect", "check_connect"}, []any{"attached", "admitted", "in_use", "ended", "foreign"}},
	} {
		var texts, known []string
		for _, name := range c.scripts {
			texts = append(texts, kv.Script(name))
		}
		for _, word := range c.known {
			known = append(known, fmt.Sprint(word))
		}
		slices.Sort(known)
		if words := testkit.ReplyWords(texts...); !slices.Equal(words, known) {
			t.Errorf("%v reply with\n%v, known are\n%v", c.scripts, words, known)
		}
	}
}
