package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/lua"
)

// maxOffers bounds the stream of offers while no runtime takes any. Sessions that
// are still unclaimed are offered again.
const maxOffers = 100_000

// Channels implements channel.Store. Only scripts whose second run
// changes nothing are retried.
type Channels struct {
	store                                                   *Store
	limits                                                  []string
	connect, checkConnect, frame, renew, detach, since, end *rueidis.Lua
}

var _ channel.Store = (*Channels)(nil)

// NewChannels returns the channels of a store. It opens channels with the limits.
func NewChannels(s *Store, limits wire.ChannelLimits) *Channels {
	return &Channels{
		store:        s,
		limits:       kv.LimitArgs(limits),
		connect:      rueidis.NewLuaScript(lua.Channel("connect")),
		frame:        rueidis.NewLuaScript(lua.Channel("frame")),
		checkConnect: rueidis.NewLuaScriptRetryable(lua.Channel("check_connect")),
		renew:        rueidis.NewLuaScript(lua.Channel("renew")),
		detach:       rueidis.NewLuaScriptRetryable(lua.Channel("detach")),
		since:        rueidis.NewLuaScriptRetryable(lua.Channel("since")),
		end:          rueidis.NewLuaScriptRetryable(lua.Channel("end")),
	}
}

// run executes a channel script.
func (c *Channels) run(ctx context.Context, doing string, script *rueidis.Lua, channelID string, read func(rueidis.RedisResult) error, args ...string) error {
	return c.store.do(ctx, doing, func(ctx context.Context, client rueidis.Client) error {
		return read(script.Exec(ctx, client, kv.ChannelKeys(channelID), args))
	})
}

// Attach implements channel.Store.
func (c *Channels) Attach(ctx context.Context, a channel.AttachRequest) (attached channel.AttachResult, err error) {
	args := []string{a.ConnectionID, a.Succeeds, boolArg(a.Reject), millis(a.Lease)}
	if a.Resume != nil {
		args = append(args, "1", a.Resume.Epoch, a.Resume.ID)
	} else {
		args = append(args, "", "", "")
	}
	args = append(args, string(a.Entry), rand.Text(), a.TeamID, a.EndpointID, a.Mode, "", "", string(a.Profile))
	var r []rueidis.RedisMessage
	err = c.run(ctx, "attach to a channel", c.connect, a.ChannelID, func(reply rueidis.RedisResult) (err error) {
		r, err = reply.ToArray()
		return err
	}, append(args, c.limits...)...)
	if err != nil {
		return attached, err
	}
	if status, _ := r[0].ToString(); status != "attached" || len(r) != 7 {
		return attached, attachError(status)
	}
	epoch, _ := r[1].ToString()
	newest, _ := r[2].ToString()
	attached = channel.AttachResult{
		Head: channel.Cursor{Epoch: epoch, ID: newest}, Offer: isOne(r[3]), TextChat: isOne(r[4]), Recovered: isOne(r[5]),
	}
	attached.Missed, err = messages(epoch, r[6])
	return attached, err
}

// CheckAttach implements channel.Store.
func (c *Channels) CheckAttach(ctx context.Context, a channel.AttachRequest) error {
	var status string
	err := c.run(ctx, "check a connection", c.checkConnect, a.ChannelID, func(reply rueidis.RedisResult) (err error) {
		status, err = reply.ToString()
		return err
	}, a.Succeeds, boolArg(a.Reject), a.TeamID, a.EndpointID)
	if err != nil || status == "admitted" {
		return err
	}
	return attachError(status)
}

// attachError returns the error for a status with which a connection is refused.
func attachError(status string) error {
	switch status {
	case "in_use":
		return fault.New(fault.SessionInUse, "Another connection of this session is open. Close it, or pass its connectionId to replace it.")
	case "ended":
		return fault.New(fault.SessionEnded, "This session has ended. Ask for a new token.")
	}
	return fmt.Errorf("attach to the channel: unexpected status %q", status)
}

// Append implements channel.Store.
func (c *Channels) Append(ctx context.Context, channelID, connectionID string, frames []channel.Frame) (outcomes []channel.Outcome, err error) {
	args := make([]string, 2, 2+2*len(frames))
	letters := make([]byte, 0, len(frames))
	for _, f := range frames {
		letters = append(letters, letter(f))
		args = append(args, f.MessageID)
	}
	for _, f := range frames {
		args = append(args, rueidis.BinaryString(f.Entry))
	}
	args[0], args[1] = connectionID, string(letters)
	err = c.run(ctx, "append frames", c.frame, channelID, func(reply rueidis.RedisResult) error {
		words, err := reply.AsStrSlice()
		if err == nil && len(words) == 0 {
			err = errUnexpectedReply
		}
		for i := range frames {
			if err == nil {
				outcomes = append(outcomes, channel.Outcome(words[min(i, len(words)-1)]))
			}
		}
		return err
	}, args...)
	return outcomes, err
}

// letter returns the kind of a frame as frame.lua takes it.
func letter(f channel.Frame) byte {
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
func (c *Channels) Renew(ctx context.Context, channelID, connectionID string, lease time.Duration, again bool) (outcome channel.Outcome, offer bool, err error) {
	err = c.run(ctx, "renew a session", c.renew, channelID, func(reply rueidis.RedisResult) error {
		r, err := reply.ToArray()
		if err != nil {
			return err
		}
		state, err := r[0].ToString()
		outcome, offer = channel.Outcome(state), len(r) > 1 && isOne(r[1])
		return err
	}, connectionID, millis(lease), boolArg(again))
	return outcome, offer, err
}

// Detach implements channel.Store.
func (c *Channels) Detach(ctx context.Context, channelID, connectionID string, entry []byte) error {
	return c.run(ctx, "detach from a channel", c.detach, channelID, rueidis.RedisResult.Error, connectionID, string(entry))
}

// Since implements channel.Store.
func (c *Channels) Since(ctx context.Context, channelID string, after channel.Cursor) (missed []channel.Message, ok bool, err error) {
	err = c.run(ctx, "read the history", c.since, channelID, func(reply rueidis.RedisResult) error {
		r, err := reply.ToArray()
		if ok = err == nil && isOne(r[0]); !ok {
			return err
		}
		missed, err = messages(after.Epoch, r[1])
		return err
	}, after.Epoch, after.ID)
	return missed, ok, err
}

// EndChannel ends a session's channel if it is open. Nothing can be added to it any
// more. The runtime receives everything up to the end, and the connection is
// notified of the reason.
func (c *Channels) EndChannel(ctx context.Context, channelID, reason string) error {
	args := []string{"", reason}
	for _, entry := range []wire.Entry{{Kind: wire.KindSession, Event: "ended"}, {Kind: wire.KindChannelEnded, Reason: reason}} {
		entry.ChannelID, entry.At = channelID, time.Now().UnixMilli()
		encoded, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("encode the end of a channel: %w", err)
		}
		args = append(args, string(encoded))
	}
	return c.run(ctx, "end a channel", c.end, channelID, rueidis.RedisResult.Error, args...)
}

// Offer implements channel.Store.
func (c *Channels) Offer(ctx context.Context, o wire.Offer) error {
	value, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode an offer: %w", err)
	}
	return c.store.do(ctx, "offer a session", func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Xadd().Key(kv.OffersStream).Maxlen().Almost().Threshold(strconv.Itoa(maxOffers)).
			Id("*").FieldValue().FieldValue("offer", string(value)).Build()).Error()
	})
}

// messages parses a list of ID, message, ID, message …
func messages(epoch string, reply rueidis.RedisMessage) ([]channel.Message, error) {
	values, err := reply.AsStrSlice()
	if err != nil || len(values)%2 != 0 {
		return nil, errors.Join(err, errUnexpectedReply)
	}
	list := make([]channel.Message, 0, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		list = append(list, channel.Message{Cursor: channel.Cursor{Epoch: epoch, ID: values[i]}, JSON: []byte(values[i+1])})
	}
	return list, nil
}

func isOne(m rueidis.RedisMessage) bool { n, _ := m.AsInt64(); return n == 1 }

func boolArg(b bool) string {
	if b {
		return "1"
	}
	return ""
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
