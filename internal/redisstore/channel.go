package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/session"
	"telapi/internal/telemetry"
)

// Channels implements channel.Store and session.Channels.
type Channels struct {
	store  *Store
	limits []string // of the channels that it opens, as script arguments
}

var (
	_ channel.Store    = (*Channels)(nil)
	_ session.Channels = (*Channels)(nil)
)

// NewChannels returns the channels of a store. It opens channels with the limits.
func NewChannels(s *Store, limits wire.ChannelLimits) *Channels {
	return &Channels{s, kv.LimitArgs(limits)}
}

// Attach implements channel.Store.
func (c *Channels) Attach(ctx context.Context, a channel.AttachRequest) (attached channel.AttachResult, err error) {
	cursor := cmp.Or(a.Resume, &channel.Cursor{})
	const callID, transactionID = "", "" // a session has none
	args := []string{
		a.ConnectionID, a.Predecessor, kv.Flag(a.RejectDuplicate), c.store.clock.At(a.ChannelID, time.Now()), kv.Millis(a.Lease),
		kv.Flag(a.Resume != nil), cursor.Epoch, cursor.ID, string(a.Entry), string(a.Offer),
		rand.Text(), a.TeamID, a.EndpointID, a.Mode, callID, transactionID, string(a.Profile),
	}
	reply, err := runScript(ctx, c.store, "attach to a channel", "connect", a.ChannelID, rueidis.RedisResult.ToArray, append(args, c.limits...)...)
	if err != nil {
		return attached, err
	}
	if status, _ := reply[0].ToString(); status != "attached" {
		return attached, attachError(status)
	}
	attached.Number, _ = reply[1].ToString()
	attached.Head.Epoch, _ = reply[2].ToString()
	attached.Head.ID, _ = reply[3].ToString()
	if c.store.opts.MinReplicas == 0 { // otherwise no replica may have confirmed the entry yet
		attached.LastEntry, _ = reply[4].ToString()
	}
	attached.Offer, attached.Expired = parseOffer(reply[5])
	attached.TextChat, attached.Recovered = isOne(reply[6]), isOne(reply[7])
	attached.Missed, err = messages(attached.Head.Epoch, reply[8])
	return attached, err
}

// CheckAttach implements channel.Store.
func (c *Channels) CheckAttach(ctx context.Context, a channel.AttachRequest) error {
	status, err := runScript(ctx, c.store, "check a connection", "check_connect", a.ChannelID, rueidis.RedisResult.ToString,
		a.Predecessor, kv.Flag(a.RejectDuplicate), a.TeamID, a.EndpointID)
	if err != nil || status == "admitted" {
		return err
	}
	return attachError(status)
}

// attachError returns the error for a status with which a connection is rejected.
func attachError(status string) error {
	switch status {
	case "in_use":
		return fault.New(fault.SessionInUse, "Another connection of this session is open. Close it, or pass its connectionId to replace it.")
	case "ended", "foreign":
		return fault.New(fault.SessionEnded, "This session has ended. Ask for a new token.")
	}
	return fmt.Errorf("attach to the channel: unexpected status %q", status)
}

// Append implements channel.Store.
func (c *Channels) Append(ctx context.Context, owner channel.Owner, frames []channel.Frame) (outcomes []channel.Outcome, lastEntry string, err error) {
	n := len(frames)
	flags, args := make([]byte, n), make([]string, 4+3*n, 5+3*n)
	for i, f := range frames {
		flags[i], args[4+i], args[4+n+i], args[4+2*n+i] = frameFlag(f), f.MessageID, rueidis.BinaryString(f.Entry), f.Item
	}
	args[0], args[1], args[2], args[3] = owner.ConnectionID, owner.Number, owner.LastEntry, string(flags)
	reply, err := runScript(ctx, c.store, "append frames", "frame", owner.ChannelID, rueidis.RedisResult.AsStrSlice, args...)
	if kv.IsFull(err) {
		return slices.Repeat([]channel.Outcome{channel.Backpressure}, n), "", nil
	}
	if err != nil {
		return nil, "", err
	}
	words := reply[1:] // one for each frame, or one for all
	outcomes = make([]channel.Outcome, n)
	for i := range outcomes {
		outcomes[i] = channel.Outcome(words[min(i, len(words)-1)])
	}
	return outcomes, reply[0], nil
}

// frameFlag returns the flag of a frame for the script frame.
func frameFlag(f channel.Frame) byte {
	switch {
	case f.Chat:
		return 'c'
	case f.Switch == wire.EnableTextChat:
		return 'e'
	case f.Switch == wire.DisableTextChat:
		return 'd'
	}
	return '-'
}

// Renew implements channel.Store.
func (c *Channels) Renew(ctx context.Context, owner channel.Owner, lease time.Duration, reoffer bool) (result channel.RenewResult, err error) {
	reply, err := runScript(ctx, c.store, "renew a session", "renew", owner.ChannelID, rueidis.RedisResult.ToArray,
		owner.ConnectionID, owner.Number, kv.Millis(lease), kv.Flag(reoffer), owner.Cursor.Epoch, owner.Cursor.ID, owner.LastEntry)
	if err != nil {
		return result, err
	}
	outcome, _ := reply[0].ToString()
	result.Outcome = channel.Outcome(outcome)
	if len(reply) == 3 { // the connection owns the session
		result.Offer, result.Expired = parseOffer(reply[1])
		result.Newest, err = reply[2].ToString()
	}
	return result, err
}

// Detach implements channel.Store.
func (c *Channels) Detach(ctx context.Context, owner channel.Owner, entry []byte) error {
	_, err := runScript(ctx, c.store, "detach from a channel", "detach", owner.ChannelID, rueidis.RedisResult.ToString,
		owner.ConnectionID, string(entry), owner.LastEntry, owner.Cursor.Epoch, kv.Flag(owner.Number == ""))
	return err
}

// Since implements channel.Store.
func (c *Channels) Since(ctx context.Context, channelID string, after channel.Cursor) (missed []channel.Message, ok bool, err error) {
	reply, err := runScript(ctx, c.store, "read the history", "since", channelID, rueidis.RedisResult.ToArray, after.Epoch, after.ID)
	if err != nil || !isOne(reply[0]) {
		return nil, false, err
	}
	missed, err = messages(after.Epoch, reply[1])
	return missed, true, err
}

// EndChannel ends a session's channel if it is open. Nothing can be added to it any
// more. The runtime receives everything up to the end, and the connection is
// notified of the reason.
func (c *Channels) EndChannel(ctx context.Context, channelID, reason string) error {
	args := []string{"", reason} // without a claim token, whichever runtime has the claim
	for _, entry := range []wire.Entry{{Kind: wire.KindSession, Event: "ended"}, {Kind: wire.KindChannelEnded, Reason: reason}} {
		entry.ChannelID, entry.At, entry.Trace = channelID, time.Now().UnixMilli(), telemetry.TraceOf(ctx)
		encoded, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("encode the end of a channel: %w", err)
		}
		args = append(args, string(encoded))
	}
	_, err := runScript(ctx, c.store, "end a channel", "end_channel", channelID, rueidis.RedisResult.ToString, args...)
	return err
}

// Claims implements channel.Store. It compares leases with the estimated clock of the
// store, which for several channels is that of the node that is ahead most.
func (c *Channels) Claims(ctx context.Context, channelIDs []string) (claims []*channel.Claim, err error) {
	now := parseMillis(c.store.clock.At("", time.Now()))
	err = c.store.readFields(ctx, "read claims", channelIDs, []string{"state", "claimUntil", "openedAt", "offeredAt"}, func(_ string, fields []string) {
		var claim *channel.Claim
		if fields[0] == "open" {
			until := parseMillis(fields[1])
			unclaimedSince := max(until, parseMillis(fields[2]))
			claim = &channel.Claim{Claimed: until > now, Offered: fields[3] != "", Waiting: time.Duration(now-unclaimedSince) * time.Millisecond}
		}
		claims = append(claims, claim)
	})
	return claims, err
}

// Presence returns which of the channels are owned by a connection, and which have
// ended. It compares leases with the local clock, because leases are much longer
// than the difference between the clocks of instances and store.
func (c *Channels) Presence(ctx context.Context, channelIDs []string) (connected, ended []string, err error) {
	err = c.store.readFields(ctx, "read presence", channelIDs, []string{"owner", "ownerUntil", "state"}, func(id string, fields []string) {
		switch owner, state := fields[0], fields[2]; {
		case state == "ended":
			ended = append(ended, id)
		case owner != "" && parseMillis(fields[1]) > time.Now().UnixMilli():
			connected = append(connected, id)
		}
	})
	return connected, ended, err
}

// readFields reads fields of channels and calls each for every channel, in the order of the
// IDs. Missing fields are empty.
func (s *Store) readFields(ctx context.Context, operation string, channelIDs, fields []string, each func(id string, values []string)) error {
	return s.do(ctx, operation, func(ctx context.Context, client rueidis.Client) error {
		commands := make(rueidis.Commands, len(channelIDs))
		for i, id := range channelIDs {
			commands[i] = client.B().Hmget().Key(kv.MetaKey(id)).Field(fields...).Build()
		}
		for i, reply := range client.DoMulti(ctx, commands...) {
			values, err := reply.AsStrSlice()
			if err != nil {
				return err
			}
			each(channelIDs[i], values)
		}
		return nil
	})
}

// messages parses a list of ID, message, ID, message …
func messages(epoch string, reply rueidis.RedisMessage) ([]channel.Message, error) {
	values, err := reply.AsStrSlice()
	list := make([]channel.Message, 0, len(values)/2)
	for pair := range slices.Chunk(values, 2) {
		list = append(list, channel.Message{Cursor: channel.Cursor{Epoch: epoch, ID: pair[0]}, JSON: []byte(pair[1])})
	}
	return list, err
}

// parseOffer parses a number that says what to do: 1 to offer the session, 2 to count an expired
// claim as well.
func parseOffer(m rueidis.RedisMessage) (offer, expired bool) {
	n, _ := m.AsInt64()
	return n > 0, n == 2
}

// parseMillis returns 0 for an empty text.
func parseMillis(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

func isOne(m rueidis.RedisMessage) bool {
	n, _ := m.AsInt64()
	return n == 1
}
