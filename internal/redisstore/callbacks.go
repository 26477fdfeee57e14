package redisstore

import (
	"context"
	_ "embed" // the script
	"errors"

	"github.com/redis/rueidis"

	"telapi/callruntime/lua"
	"telapi/callruntime/wire"
	"telapi/internal/callback"
)

//go:embed lua/callback.lua
var callbackLua string

// Callbacks are the work items of live conversations, and the credentials by
// which they are answered.
type Callbacks struct {
	store *Store
	// Retried: a second run with the same callback id has the same outcome.
	script *rueidis.Lua
}

var _ callback.Store = (*Callbacks)(nil)

// NewCallbacks returns the callbacks of a store.
func NewCallbacks(s *Store) *Callbacks {
	return &Callbacks{s, rueidis.NewLuaScriptRetryable(lua.Channel(callbackLua))}
}

// Channel implements callback.Store.
func (c *Callbacks) Channel(ctx context.Context, channelID string) (ch callback.Channel, err error) {
	err = c.store.do(ctx, "read the channel", func(ctx context.Context, client rueidis.Client) error {
		known, err := client.Do(ctx, client.B().Hmget().Key(wire.ChannelKeys(channelID)[0]).Field("epoch", "profile", "callId", "transactionId").Build()).AsStrSlice()
		if err == nil {
			ch = callback.Channel{Epoch: known[0], Profile: []byte(known[1]), CallID: known[2], TransactionID: known[3]}
		}
		return err
	})
	if err == nil && ch.Epoch == "" {
		err = callback.ErrNoChannel
	}
	return ch, err
}

// Peek implements callback.Store.
func (c *Callbacks) Peek(ctx context.Context, credential callback.Credential) (callback.Verdict, error) {
	verdict, _, err := c.Deliver(ctx, callback.Delivery{Credential: credential})
	return verdict, err
}

// Deliver implements callback.Store.
func (c *Callbacks) Deliver(ctx context.Context, d callback.Delivery) (verdict callback.Verdict, receipt []byte, err error) {
	args := make([]string, 0, 8+len(d.Entries))
	args = append(args, d.Digest, string(d.Kind), d.WorkItemID, d.CallbackID, d.BodyDigest, flag(d.Identified), d.Epoch, rueidis.BinaryString(d.Receipt))
	for _, entry := range d.Entries {
		args = append(args, rueidis.BinaryString(entry))
	}
	err = c.store.do(ctx, "deliver a callback", func(ctx context.Context, client rueidis.Client) error {
		reply, err := c.script.Exec(ctx, client, wire.ChannelKeys(d.ChannelID), args).AsStrSlice()
		if err == nil && len(reply) == 0 {
			err = errors.New("the script answered in another form")
		}
		if err == nil {
			verdict = callback.Verdict(reply[0])
			if len(reply) > 1 {
				receipt = []byte(reply[1])
			}
		}
		return err
	})
	return verdict, receipt, err
}
