package redisstore

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"

	"telapi/internal/callback"
	"telapi/internal/kv"
	"telapi/internal/lua"
)

// Callbacks implements callback.Store: work items and their credentials.
type Callbacks struct {
	store *Store
	// Both scripts are retried: deliver returns the same result for the same
	// callback ID, and check changes nothing.
	deliver *rueidis.Lua
	check   *rueidis.Lua
}

var _ callback.Store = (*Callbacks)(nil)

// NewCallbacks returns the callbacks of a store.
func NewCallbacks(s *Store) *Callbacks {
	return &Callbacks{
		store:   s,
		deliver: rueidis.NewLuaScriptRetryable(lua.Channel("callback")),
		check:   rueidis.NewLuaScriptRetryable(lua.Channel("check_credential")),
	}
}

// Channel implements callback.Store.
func (c *Callbacks) Channel(ctx context.Context, channelID string) (ch callback.Channel, err error) {
	err = c.store.do(ctx, "read a channel", func(ctx context.Context, client rueidis.Client) error {
		fields, err := client.Do(ctx, client.B().Hmget().Key(kv.MetaKey(channelID)).Field("epoch", "profile", "callId", "transactionId").Build()).AsStrSlice()
		if err == nil {
			ch = callback.Channel{Epoch: fields[0], Profile: []byte(fields[1]), CallID: fields[2], TransactionID: fields[3]}
		}
		return err
	})
	if err == nil && ch.Epoch == "" {
		err = callback.ErrChannelNotFound
	}
	return ch, err
}

// CheckCredential implements callback.Store.
func (c *Callbacks) CheckCredential(ctx context.Context, credential callback.Credential) (usable bool, err error) {
	err = c.store.do(ctx, "check a credential", func(ctx context.Context, client rueidis.Client) error {
		status, err := c.check.Exec(ctx, client, kv.ChannelKeys(credential.ChannelID),
			[]string{credential.Digest, string(credential.Kind), credential.WorkItemID}).ToString()
		usable = status == "usable"
		return err
	})
	return usable, err
}

// Deliver implements callback.Store.
func (c *Callbacks) Deliver(ctx context.Context, d callback.DeliverParams) (result callback.DeliverResult, err error) {
	args := make([]string, 0, 8+len(d.Entries))
	args = append(args, d.Digest, string(d.Kind), d.WorkItemID, d.CallbackID, d.BodyDigest, boolArg(d.Deduplicate), d.Epoch, rueidis.BinaryString(d.Receipt))
	for _, entry := range d.Entries {
		args = append(args, rueidis.BinaryString(entry))
	}
	err = c.store.do(ctx, "deliver a callback", func(ctx context.Context, client rueidis.Client) error {
		reply, err := c.deliver.Exec(ctx, client, kv.ChannelKeys(d.ChannelID), args).AsStrSlice()
		if err != nil {
			return err
		}
		reply = append(reply, "", "") // receipt and number are optional
		result = callback.DeliverResult{Status: callback.Status(reply[0]), Receipt: []byte(reply[1])}
		if reply[2] != "" {
			result.Number, err = strconv.ParseInt(reply[2], 10, 64)
		}
		return err
	})
	return result, err
}

// StillParked implements callback.Store.
func (c *Callbacks) StillParked(ctx context.Context, items []callback.ParkedItem) (parked []bool, err error) {
	err = c.store.do(ctx, "check parked callbacks", func(ctx context.Context, client rueidis.Client) error {
		commands := make(rueidis.Commands, len(items))
		for i, item := range items {
			commands[i] = client.B().Hexists().Key(kv.ChannelKeys(item.ChannelID)[5]).Field(strconv.FormatInt(item.Number, 10)).Build()
		}
		for _, reply := range client.DoMulti(ctx, commands...) {
			exists, err := reply.AsBool()
			if err != nil {
				return err
			}
			parked = append(parked, exists)
		}
		return nil
	})
	return parked, err
}
