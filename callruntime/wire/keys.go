package wire

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The store's names. They never change their meaning. All keys of a channel
// carry its id as hash tag, so that a cluster holds them in one slot.
const (
	channelPrefix = "telapi:ch:{"

	// OffersStream holds sessions that want a runtime: the field offer, one
	// JSON object. Runtimes read it as a consumer group.
	OffersStream = "telapi:offers"
	// OffersGroup is the group of runtimes that take every session.
	OffersGroup = "runtimes"
)

// ValidChannelID tells whether a channel may be named so: 1 to 128 letters,
// digits and . _ : - of ASCII. Others could leave the hash tag or a URL.
func ValidChannelID(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return id != "" && len(id) <= 128
}

// ChannelKeys are the keys of a channel in the order in which every script of
// the contract takes them: what is known of it, the stream towards the runtime,
// the history towards the browser, the ids of recent messages each way, work
// items and their credentials, when those can be forgotten, and the ids of
// earlier messages each way.
func ChannelKeys(id string) []string {
	var all strings.Builder // in which each key is a part, since every script needs all
	all.Grow(len(channelKeys) * (len(channelPrefix) + len(id) + len("}:sentBefore")))
	keys := make([]string, len(channelKeys))
	for i, name := range channelKeys {
		from := all.Len()
		all.WriteString(channelPrefix)
		all.WriteString(id)
		all.WriteString("}:")
		all.WriteString(name)
		keys[i] = all.String()[from:]
	}
	return keys
}

var channelKeys = [...]string{"meta", "in", "out", "seen", "sent", "work", "forget", "seenBefore", "sentBefore"}

// StreamKey is the stream towards the runtime.
func StreamKey(id string) string { return channelPrefix + id + "}:in" }

// HistoryKey is the stream towards the browser.
func HistoryKey(id string) string { return channelPrefix + id + "}:out" }

// Upward is the pub/sub name on which a runtime hears of its channel.
func Upward(id string) string { return channelPrefix + id + "}:up" }

// Downward is the pub/sub name on which a browser's socket hears of it.
func Downward(id string) string { return channelPrefix + id + "}:down" }

// Notice is the first byte of whatever is published on a channel's two names.
type Notice byte

// The notices. Nothing but audio is lost with one that goes unheard.
const (
	NoticeAudio    Notice = 'A' // both: the ChannelMessage
	NoticeEntry    Notice = 'E' // up: the id of an entry that is on the stream now, a blank, and what NoticeDue says
	NoticeDue      Notice = 'D' // up: ms until a work item is over its time, or nothing if none is awaited
	NoticeMessage  Notice = 'M' // down: epoch, id before and id of the last, separated by blanks, and each ChannelMessage after a line feed
	NoticeReplaced Notice = 'R' // down: the connection that owns the session now
	NoticeClosed   Notice = 'X' // down: the reason for which the channel ended
)

// ChannelLimits bound what a channel keeps. They are fixed when it is opened.
type ChannelLimits struct {
	HistoryMessages int64 // of the history towards the browser
	HistoryMs       int64
	BacklogEntries  int64 // that the runtime has not committed
	BacklogBytes    int64
	IdleMs          int64 // a channel on which nothing happens for so long has ended
	KeepMs          int64 // for which an ended channel is remembered
}

// DefaultChannelLimits are those of the contract.
func DefaultChannelLimits() ChannelLimits {
	const minute, hour = 60_000, 3_600_000
	return ChannelLimits{
		HistoryMessages: 300, HistoryMs: 10 * minute,
		BacklogEntries: 10_000, BacklogBytes: 8 << 20,
		IdleMs: 24 * hour, KeepMs: 25 * hour,
	}
}

// Offer is a session that wants a runtime. Its channel has the session's id.
type Offer struct {
	SessionID  string         `json:"sessionId"`
	TeamID     string         `json:"teamId"`
	EndpointID string         `json:"endpointId"`
	Mode       string         `json:"mode"`
	Identity   *Identifier    `json:"identity,omitzero"`
	Metadata   jsontext.Value `json:"metadata,omitzero"`
}

// Args are the limits as scripts take them.
func (l ChannelLimits) Args() []string {
	var args []string
	for _, n := range []int64{l.HistoryMessages, l.HistoryMs, l.BacklogEntries, l.BacklogBytes, l.IdleMs, l.KeepMs} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	return args
}
