// Package kv is the part of the key-value store that its users share: how to connect, the
// names of keys and topics, the Lua scripts, subscriptions, and the clocks of its servers.
//
// Its keys, streams and topics are private to the service, except LimitsKey and
// AnnounceTopic, which consoles may use (docs/console.md). Instances of two versions share a
// store during an upgrade, so a name keeps its meaning.
//
// The keys of a channel are telapi:ch:{ID}:NAME. The scripts in internal/kv/lua change them.
//
//	meta        hash: the channel's fields, see below
//	in          stream: the entries for the runtime; field entry, a wire.Entry. Every 16th entry
//	            also has the field total, the size of all entries up to it in bytes
//	out         stream: the history, messages to the browser; field message, a wire.ChannelMessage
//	replicated  string: written before WAIT, see ReplicatedKey
//	up, down    topics: notices to the runtime's connection and to the browser's, see Notice
//
// All keys but replicated exist from the opening of a channel until its end is committed, so
// that a cluster can move its slot meanwhile. They expire after idle time plus keep time, and
// after the keep time once the channel has ended. IDs in both streams are NUMBER-MS: numbers start
// at 1 and have no gaps, MS is the time in Unix ms. All times are those of the store's clock, in
// Unix ms.
//
// Fields of meta:
//
//	state, endReason                   open or ended, and why it ended
//	epoch                              random; changes when the channel is opened again or data was lost
//	team, endpoint, mode, callId, transactionId, profile, openedAt
//	claimedBy, claimToken, claimUntil, claimRequestedAt  the runtime's claim: claimedBy is its name, a slash and its secret, empty after
//	                                   a release; claimToken starts with the ID of the connection, a slash follows
//	awaitChat                          kind and TTL in ms of the work items of chat frames; empty: they have none
//	lostToken                          claimToken before the last loss of data, which empties that
//	offer, offeredAt                   the session's wire.Offer, empty for a call; time of the last offer, empty after a claim
//	lostAt                             when the store was last found to have lost data; empty if never
//	owner, ownerUntil, requestedAt     the browser's connection, the end of its lease, when it was requested
//	connections                        number of connections so far
//	chatOff                            the side that disabled text chat: runtime or browser; empty if enabled
//	committed                          the committed position
//	dropped                            number of the last removed entry, and the size of all entries up to it
//	shared, uses                       number of credentials of scope channel, and of callbacks with them
//	seen, lastFrame                    number of the browser's frames; ID of the entry of the last one
//	<ID, >ID                           message ID of the browser or of the runtime: the number of its frame or message. The last
//	                                   4,096 and 1,024 count
//	search                             cursor of the search for fields that are not needed any more, and how many it is ahead, see forget in channel.lua
//	flow, queue                        counters of the runtime stream and of the work items, see channel.lua and work.lua
//	inLast, outLast, trimmed           IDs of the newest entry, the newest message and the newest removed message
//	held                               while messages wait for replicas: ID of the newest visible message, or 0-0
//	historyMessages, historyMs, idleMs, keepMs  the limits
//
// meta also has the work items and their credentials, see work.lua. Once the end of a channel is
// committed, meta has the fields that compact keeps.
package kv

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"telapi/callruntime/wire"
)

const (
	// OffersStream holds sessions without a runtime: the field offer, one JSON
	// object, and the field expiresAt, in Unix ms. Every instance reads all of it.
	OffersStream = "telapi:offers"

	// ConnectionsKey holds the connections of runtimes, a sorted set. The score is when
	// a connection expires, in Unix ms.
	ConnectionsKey = "telapi:connections"

	// ReportsStream holds speech reports that are not counted yet: the field
	// report, one wire.SpeechReport.
	ReportsStream = "telapi:usage"
	// ReplicatedReportsKey is written after reports, as ReplicatedKey is. It has the same slot.
	ReplicatedReportsKey = "telapi:{" + ReportsStream + "}:replicated"
	// RejectedReportsStream holds reports that could not be counted: the fields
	// report and reason.
	RejectedReportsStream = "telapi:usage:rejected"

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
	// StreamsTopic tells every instance which streamed answers to end: the ID of a channel
	// that has ended, or the ID of a channel, a space and the ID of a cancelled work item.
	StreamsTopic = "telapi:streams"
	// BeaconPrefix is followed by a random name. A process publishes on this topic
	// to check that its subscriptions work.
	BeaconPrefix = "telapi:beacon:"

	// channelPrefix is followed by the channel ID as hash tag, so that a cluster
	// keeps all keys of a channel in one slot.
	channelPrefix = "telapi:ch:{"
)

// ChannelKeys returns the keys of a channel in the order in which every channel
// script takes them: metadata, runtime stream and history.
func ChannelKeys(id string) []string {
	return []string{MetaKey(id), RuntimeStreamKey(id), HistoryKey(id)}
}

// Millis returns a duration as an argument of a script.
func Millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Flag returns a condition as an argument of a script.
func Flag(condition bool) string {
	if condition {
		return "1"
	}
	return ""
}

// LimitArgs returns limits as arguments of the channel scripts.
func LimitArgs(l wire.ChannelLimits) []string {
	return strings.Fields(fmt.Sprint(l.HistoryMessages, l.HistoryMs, l.IdleMs, l.KeepMs, l.BacklogEntries, l.BacklogBytes))
}

// NewestOfferKey returns the key with the ID of a session's newest offer. Its hash tag
// is the name of the stream, so that a cluster keeps both in one slot.
func NewestOfferKey(sessionID string) string {
	return "telapi:offer:{" + OffersStream + "}:" + sessionID
}

// ClaimsKey returns the key with the claims that a connection may have, a set.
func ClaimsKey(connectionID string) string { return "telapi:claims:" + connectionID }

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

// MetaKey returns the key of a channel's metadata, work items and credentials.
func MetaKey(id string) string { return channelPrefix + id + "}:meta" }

// RuntimeStreamKey returns the key of a channel's stream to the runtime.
func RuntimeStreamKey(id string) string { return channelPrefix + id + "}:in" }

// HistoryKey returns the key of a channel's messages to the browser.
func HistoryKey(id string) string { return channelPrefix + id + "}:out" }

// RuntimeTopic returns the pub/sub topic of notices to the runtime.
func RuntimeTopic(id string) string { return channelPrefix + id + "}:up" }

// BrowserTopic returns the pub/sub topic of notices to the browser's socket.
func BrowserTopic(id string) string { return channelPrefix + id + "}:down" }
