package kv

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
)

// Notice is the first byte of a message on a channel's topics.
type Notice byte

// The notices. Only audio is lost when a notice is missed.
const (
	NoticeAudio Notice = 'A' // both topics: the ChannelMessage

	// On the topic of the runtime. An E has the ID before the first new entry, the ID of the
	// last one, and the content of a D, separated by spaces; if the entries are small, each of
	// them follows after a line feed.
	NoticeEntry   Notice = 'E'
	NoticeClaimed Notice = 'C' // token of the claim that the channel has now
	NoticeDue     Notice = 'D' // ms until the next work item times out or the browser's lease expires; empty if there is neither

	// On the topic of the browser. An M has the epoch, the ID before the first new message and
	// the ID of the last one, separated by spaces, then each ChannelMessage after a line feed.
	NoticeMessage  Notice = 'M'
	NoticeReplaced Notice = 'R' // the connection that owns the session now; empty: the owner should run the script renew
	NoticeEnded    Notice = 'X' // the reason why the channel ended
)

// Items calls add with the ID and the text of each item of an E or an M, one per line. They
// have consecutive numbers and the time of the last one. Items returns false if the number of
// lines differs, for example because an item contains a line feed.
func Items(before, last, lines string, add func(id, text string)) bool {
	number := wire.EntryNumber(before) // IDs of messages have the form of positions
	_, at, _ := strings.Cut(last, "-")
	for line := range strings.SplitSeq(lines, "\n") {
		number++
		add(strconv.FormatInt(number, 10)+"-"+at, line)
	}
	return number == wire.EntryNumber(last)
}

// PublishAudio publishes an audio frame on a channel's topic. It goes through the
// node that holds the channel's slot, so that a cluster keeps the order.
func PublishAudio(ctx context.Context, c rueidis.Client, topic, message string) error {
	return c.Do(ctx, c.B().Arbitrary("PUBLISH").Keys(topic).Args(string(NoticeAudio)+message).Build()).Error()
}
