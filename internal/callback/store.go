// Package callback owns what a provider posts back: whether its credential is
// good, what its body puts on the conversation's stream, and that this happens
// once and in order.
package callback

import (
	"context"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Credential is what a provider presents. The token itself goes no further than
// the handler: Digest is its SHA-256 in hex.
type Credential struct {
	ChannelID  string
	Kind       wire.WorkItemKind
	WorkItemID string // as the path names it; empty on the bot route
	Digest     string
}

// DeliverParams is a callback on its way to the stream.
type DeliverParams struct {
	Credential
	CallbackID string
	// BodyDigest tells a repetition from another body.
	BodyDigest string
	// Deduplicate says that the body carries something to tell it by. Only then
	// is the same body a repetition under a channel's credential, where a bot
	// may well say the same thing twice; a work item has one answer anyway.
	Deduplicate bool
	// Epoch is the life of the channel whose profile decided the commands.
	Epoch string
	// Entries are what is appended, consecutively and in this order. There
	// may be none; the work item is answered all the same. Where the path does
	// not name the work item, the store adds "workItemId" to each object.
	Entries [][]byte
	// Receipt is kept for the provider that asks again.
	Receipt []byte
}

// Status is what became of a callback.
type Status string

// The verdicts.
const (
	Routed       Status = "routed"       // its entries are on the stream
	Parked       Status = "parked"       // consumed; routed once its predecessors are
	Invalid      Status = "invalid"      // no such credential here, or no longer
	Ended        Status = "ended"        // the channel has ended
	Consumed     Status = "consumed"     // answered before, with another body
	Duplicate    Status = "duplicate"    // answered before, with this body
	Cancelled    Status = "cancelled"    // the runtime has cancelled the work item
	Stale        Status = "stale"        // of another epoch: nothing was done; decide again
	Backpressure Status = "backpressure" // the runtime is too far behind: nothing was done
)

// DeliverResult is what the store has to say of a delivery.
type DeliverResult struct {
	Status  Status
	Receipt []byte // the first one, where the verdict is Duplicate or Consumed
	Number  int64  // of the work item among the channel's, where it is Parked
}

// Channel is what a decision needs to know of a conversation.
type Channel struct {
	Epoch         string
	Profile       []byte // gatewayProfile as JSON
	CallID        string
	TransactionID string
}

// ErrChannelNotFound says that there is no such conversation.
var ErrChannelNotFound = fault.New(fault.NotFound, "There is no such conversation.")

// Store is where credentials and streams are. Every method is one round trip.
type Store interface {
	// Channel reads what is fixed for a channel's life, or fails with
	// ErrChannelNotFound. An ended channel is still there for a while.
	Channel(ctx context.Context, channelID string) (Channel, error)
	// CheckCredential reports whether a delivery with the credential would be
	// routed or parked. It changes nothing.
	CheckCredential(ctx context.Context, c Credential) (bool, error)
	// Deliver checks, consumes, orders, parks, appends and announces in one
	// atomic step: all of it, or nothing. It may be repeated with the same
	// CallbackID after a lost reply and then has the same outcome.
	Deliver(ctx context.Context, d DeliverParams) (DeliverResult, error)
	// StillParked reports for each item whether it is still parked.
	StillParked(ctx context.Context, items []ParkedItem) ([]bool, error)
}
