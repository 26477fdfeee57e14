package redisstore

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/callback"
	"telapi/internal/kv"
)

// Callbacks implements callback.Store: work items and their credentials.
type Callbacks struct{ store *Store }

var _ callback.Store = (*Callbacks)(nil)

// NewCallbacks returns the callbacks of a store.
func NewCallbacks(s *Store) *Callbacks { return &Callbacks{s} }

// Channel implements callback.Store.
func (c *Callbacks) Channel(ctx context.Context, channelID string) (callback.Channel, error) {
	var found callback.Channel
	err := c.store.readFields(ctx, "read a channel", []string{channelID}, []string{"epoch", "profile", "callId", "transactionId", "team"}, func(_ string, fields []string) {
		found = callback.Channel{Epoch: fields[0], Profile: []byte(fields[1]), CallID: fields[2], TransactionID: fields[3], TeamID: fields[4]}
	})
	if err == nil && found.Epoch == "" {
		err = callback.ErrChannelNotFound
	}
	return found, err
}

// CheckCredential implements callback.Store.
func (c *Callbacks) CheckCredential(ctx context.Context, credential callback.Credential) (state callback.CredentialState, err error) {
	reply, err := runScript(ctx, c.store, "check a credential", "check_credential", credential.ChannelID, rueidis.RedisResult.AsStrSlice,
		credential.Digest, string(credential.Kind), credential.WorkItemID)
	if err != nil {
		return state, err
	}
	state.Status = callback.Status(reply[0])
	if len(reply) > 1 {
		ms, err := strconv.ParseInt(reply[1], 10, 64)
		state.TimeLeft, state.OfWorkItem = time.Duration(ms)*time.Millisecond, reply[2] != "0"
		return state, err
	}
	return state, nil
}

// Deliver implements callback.Store.
func (c *Callbacks) Deliver(ctx context.Context, d callback.DeliverParams) (result callback.DeliverResult, err error) {
	duplicateFor, use := "", d.CallbackID // use: the name of the callback in the credentials of a channel
	if d.DuplicateFor > 0 {
		duplicateFor, use = kv.Millis(d.DuplicateFor), d.BodyDigest
	}
	args := []string{
		d.Digest, string(d.Kind), d.WorkItemID, d.CallbackID, d.BodyDigest, duplicateFor, d.Epoch,
		rueidis.BinaryString(d.Receipt), kv.Flag(d.Park),
	}
	for _, entry := range d.Entries {
		args = append(args, rueidis.BinaryString(entry))
	}
	result, err = parseDelivery(runScript(ctx, c.store, "deliver a callback", "callback", d.ChannelID, rueidis.RedisResult.AsStrSlice, args...))
	if result.Accepted() {
		c.store.accepted.add(d.Credential, d.Epoch, use)
	}
	return result, err
}

// DeliverStream implements callback.Store.
func (c *Callbacks) DeliverStream(ctx context.Context, p callback.StreamParams) (result callback.DeliverResult, err error) {
	args := []string{
		p.Digest, string(p.Kind), p.WorkItemID, p.CallbackID, p.Digests, p.Epoch,
		kv.Flag(p.Park), rueidis.BinaryString(p.Receipt), strconv.Itoa(len(p.Parts)),
	}
	for _, entry := range slices.Concat(p.Parts, p.Last) {
		args = append(args, rueidis.BinaryString(entry))
	}
	result, err = parseDelivery(runScript(ctx, c.store, "deliver a streamed answer", "stream", p.ChannelID, rueidis.RedisResult.AsStrSlice, args...))
	if p.Last != nil && result.Accepted() {
		c.store.accepted.add(p.Credential, p.Epoch, "")
	}
	return result, err
}

// parseDelivery parses the reply of the scripts callback and stream.
func parseDelivery(reply []string, err error) (result callback.DeliverResult, _ error) {
	if err != nil {
		return result, err
	}
	reply = append(reply, "", "", "") // receipt, number and offer are optional
	first, receipt := splitReceipt(reply[1])
	result = callback.DeliverResult{Status: callback.Status(reply[0]), Receipt: []byte(receipt), WaitsFor: first, Offer: []byte(reply[3])}
	if reply[2] != "" {
		result.Number, err = strconv.ParseInt(reply[2], 10, 64)
	}
	return result, err
}

// splitReceipt splits a stored receipt into the work item for which the callback waited,
// if it was parked, and the JSON object.
func splitReceipt(stored string) (first *callback.AwaitedItem, receipt string) {
	start := max(0, strings.IndexByte(stored, '{'))
	deadline, id, parked := strings.Cut(strings.TrimSuffix(stored[:start], " "), "@")
	if ms, err := strconv.ParseInt(deadline, 10, 64); parked && err == nil {
		first = &callback.AwaitedItem{WorkItemID: id, Deadline: time.UnixMilli(ms).UTC()}
	}
	return first, stored[start:]
}

// SubscribeStreams delivers the notices that end streamed answers while Store.Subscribe runs.
func (c *Callbacks) SubscribeStreams(subscriber kv.Listener) (stop func()) {
	return c.store.topics.Subscribe(kv.StreamsTopic, subscriber).Close
}

// StillParked implements callback.Store.
func (c *Callbacks) StillParked(ctx context.Context, items []callback.ParkedItem) (parked []bool, err error) {
	err = c.store.do(ctx, "check parked callbacks", func(ctx context.Context, client rueidis.Client) error {
		commands := make(rueidis.Commands, len(items))
		for i, item := range items {
			field := strconv.FormatInt(item.Number, 10)
			if item.Unfinished {
				field += "+1" // the first part of a streamed answer
			}
			commands[i] = client.B().Hexists().Key(kv.MetaKey(item.ChannelID)).Field(field).Build()
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
