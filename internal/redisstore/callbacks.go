package redisstore

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"

	"telapi/internal/callback"
	"telapi/internal/kv"
	"telapi/internal/lua"
)

// Callbacks are the work items of live conversations, and the credentials by
// which they are answered.
type Callbacks struct {
	store *Store
	// Retried: a second run with the same callback id has the same outcome.
	deliver *rueidis.Lua
	check   *rueidis.Lua
}

var _ callback.Store = (*Callbacks)(nil)

// NewCallbacks returns the callbacks of a store.
func NewCallbacks(s *Store) *Callbacks {
	return &Callbacks{
		store:   s,
		deliver: rueidis.NewLuaScriptRetryable(lua.FastChannel("credential", "callback")),
		check:   rueidis.NewLuaScriptRetryable(lua.Channel("credential", "check_credential")),
	}
}

// Channel implements callback.Store.
func (c *Callbacks) Channel(ctx context.Context, channelID string) (ch callback.Channel, err error) {
	err = c.store.do(ctx, "read the channel", func(ctx context.Context, client rueidis.Client) error {
		known, err := client.Do(ctx, client.B().Hmget().Key(kv.MetaKey(channelID)).Field("epoch", "profile", "callId", "transactionId").Build()).AsStrSlice()
		if err == nil {
			ch = callback.Channel{Epoch: known[0], Profile: []byte(known[1]), CallID: known[2], TransactionID: known[3]}
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
func (c *Callbacks) Deliver(ctx context.Context, d callback.DeliverParams) (outcome callback.DeliverResult, err error) {
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
		reply = append(reply, make([]string, 3)...) // what the verdict has no use for
		outcome = callback.DeliverResult{Status: callback.Status(reply[0]), Receipt: []byte(reply[1])}
		if reply[2] != "" {
			outcome.Number, err = strconv.ParseInt(reply[2], 10, 64)
		}
		return err
	})
	return outcome, err
}

// StillParked implements callback.Store.
func (c *Callbacks) StillParked(ctx context.Context, items []callback.ParkedItem) (waiting []bool, err error) {
	err = c.store.do(ctx, "look for parked callbacks", func(ctx context.Context, client rueidis.Client) error {
		cmds := make([]rueidis.Completed, 0, len(items))
		for _, t := range items {
			cmds = append(cmds, client.B().Hexists().Key(kv.ChannelKeys(t.ChannelID)[5]).Field(strconv.FormatInt(t.Number, 10)).Build())
		}
		for _, reply := range client.DoMulti(ctx, cmds...) {
			there, err := reply.AsBool()
			if err != nil {
				return err
			}
			waiting = append(waiting, there)
		}
		return nil
	})
	return waiting, err
}
