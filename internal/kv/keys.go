// Package kv names the keys, streams and pub/sub topics of the key-value store.
// Consoles and runtimes in other languages rely on these names: a name never
// changes its meaning. docs/runtime-contract.md documents them.
package kv

import (
	"fmt"
	"strings"

	"telapi/callruntime/wire"
)

const (
	// OffersStream holds sessions without a runtime: the field offer, one JSON
	// object, and the field expiresAt, in Unix ms. Every instance reads all of it.
	OffersStream = "telapi:offers"

	// ConnectionsKey holds the connections of runtimes, a sorted set. The score is when
	// a connection expires, in Unix ms.
	ConnectionsKey = "telapi:connections"
	// claimsPrefix is followed by the ID of a connection: the set of the channels that it
	// may have claimed.
	claimsPrefix = "telapi:claims:"

	// ReportsStream holds speech reports that are not counted yet: the field
	// report, one wire.SpeechReport.
	ReportsStream = "telapi:usage"
	// RejectedReportsStream holds reports that could not be counted: the fields
	// report and reason.
	RejectedReportsStream = "telapi:usage:refused"

	// LimitsKey holds the rate limits, one JSON value. A process that changes it publishes
	// ratelimit.Topic on AnnounceTopic.
	LimitsKey = "telapi:limits"
	// RatePrefix is followed by ip:<tier>:<address> or team:<id>:<day>. The value
	// is the number of permits granted in the window, which ends with the key's
	// TTL.
	RatePrefix = "telapi:rate:"
	// LeasePrefix is followed by the name of a job that one instance at a time
	// may run. The value names the holder, which renews the key's TTL.
	LeasePrefix = "telapi:lease:"
	// FingerprintsKey holds the fingerprints of the instances' JWT secrets, a sorted
	// set. The score is when a fingerprint expires, in Unix ms.
	FingerprintsKey = "telapi:fingerprints"
	// ProbeKey is written periodically to check that the store accepts writes.
	ProbeKey = "telapi:probe"
	// AnnounceTopic carries cache invalidations, one topic per message, to every
	// instance.
	AnnounceTopic = "telapi:announce"
	// BeaconPrefix is followed by a random name. A process publishes on this topic
	// to check that its subscriptions work.
	BeaconPrefix = "telapi:beacon:"

	// channelPrefix is followed by the channel ID as hash tag, so that a cluster
	// keeps all keys of a channel in one slot.
	channelPrefix = "telapi:ch:{"
)

var channelKeys = [...]string{"meta", "in", "out", "seen", "sent", "work", "forget", "seenBefore", "sentBefore"}

// ChannelKeys returns the keys of a channel in the order in which every channel
// script takes them: metadata, runtime stream, history, recent message IDs in
// both directions, work items with their credentials, the times at which those
// may be deleted, and older message IDs in both directions.
func ChannelKeys(id string) []string {
	var joined strings.Builder // one allocation for all keys: every script call needs them
	joined.Grow(len(channelKeys) * (len(channelPrefix) + len(id) + len("}:sentBefore")))
	keys := make([]string, len(channelKeys))
	for i, name := range channelKeys {
		from := joined.Len()
		joined.WriteString(channelPrefix)
		joined.WriteString(id)
		joined.WriteString("}:")
		joined.WriteString(name)
		keys[i] = joined.String()[from:]
	}
	return keys
}

// LimitArgs returns limits as arguments of the channel scripts.
func LimitArgs(l wire.ChannelLimits) []string {
	return strings.Fields(fmt.Sprint(l.HistoryMessages, l.HistoryMs, l.BacklogEntries, l.BacklogBytes, l.IdleMs, l.KeepMs))
}

// NewestOfferKey returns the key with the ID of a session's newest offer. Its hash tag
// is the name of the stream, so that a cluster keeps both in one slot.
func NewestOfferKey(sessionID string) string {
	return "telapi:offer:{" + OffersStream + "}:" + sessionID
}

// ClaimsKey returns the key with the channels that a connection may have claimed.
func ClaimsKey(connectionID string) string { return claimsPrefix + connectionID }

// ReplicatedKey returns the key that is written after a channel's data if replicas
// must confirm it: WAIT covers only earlier writes of its own connection.
func ReplicatedKey(id string) string { return channelPrefix + id + "}:replicated" }

// SplitChannelKey returns the ID of a channel and the name of one of its keys, such as
// meta. Both are empty for other keys.
func SplitChannelKey(key string) (id, name string) {
	rest, ok := strings.CutPrefix(key, channelPrefix)
	id, name, found := strings.Cut(rest, "}:")
	if !ok || !found {
		return "", ""
	}
	return id, name
}

// MetaKey returns the key of a channel's metadata.
func MetaKey(id string) string { return channelPrefix + id + "}:meta" }

// WorkKey returns the key of a channel's work items and credentials.
func WorkKey(id string) string { return channelPrefix + id + "}:work" }

// RuntimeStreamKey returns the key of a channel's stream to the runtime.
func RuntimeStreamKey(id string) string { return channelPrefix + id + "}:in" }

// HistoryKey returns the key of a channel's messages to the browser.
func HistoryKey(id string) string { return channelPrefix + id + "}:out" }

// RuntimeTopic returns the pub/sub topic of notices to the runtime.
func RuntimeTopic(id string) string { return channelPrefix + id + "}:up" }

// BrowserTopic returns the pub/sub topic of notices to the browser's socket.
func BrowserTopic(id string) string { return channelPrefix + id + "}:down" }

// Notice is the first byte of a message on a channel's topics.
type Notice byte

// The notices. Only audio is lost when a notice is missed.
const (
	NoticeAudio    Notice = 'A' // both topics: the ChannelMessage
	NoticeEntry    Notice = 'E' // runtime: ID of an entry now on the stream, a space, and the content of NoticeDue
	NoticeClaimed  Notice = 'C' // runtime: token of the claim that the channel has now
	NoticeDue      Notice = 'D' // runtime: ms until a work item expires; empty if none is awaited
	NoticeMessage  Notice = 'M' // browser: epoch, previous ID and last ID, separated by spaces, then each ChannelMessage after a line feed
	NoticeReplaced Notice = 'R' // browser: the connection that owns the session now; empty: the owner should run renew.lua
	NoticeEnded    Notice = 'X' // browser: the reason why the channel ended
)
