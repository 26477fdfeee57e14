// Package callback accepts the callbacks of providers. It checks the
// credential, decodes the body, decides on the commands in it and delivers the
// entries to the runtime stream, once and in the order of the work items.
package callback

import (
	"context"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Credential identifies the work item that a callback answers and proves the
// right to answer it.
type Credential struct {
	ChannelID  string
	Kind       wire.WorkItemKind
	WorkItemID string // from the path or the token; empty if neither has it, on the bot route
	Digest     string // SHA-256 of the callback token in hex; empty without a token
}

// DeliverParams is a callback that is ready for the runtime stream.
type DeliverParams struct {
	Credential
	CallbackID string
	BodyDigest string // to detect a repeated body
	// DuplicateFor is how long a repeated body is a duplicate under a channel's
	// credential; 0 for never.
	DuplicateFor time.Duration
	// Epoch is the channel's epoch for which the commands were allowed or denied.
	Epoch string
	// Entries are appended together, in this order. If WorkItemID is empty, the
	// store adds "workItemId" to each entry.
	Entries [][]byte
	Receipt []byte // JSON, returned for duplicates
	// Park lets the store park the entries. Without it, a callback that has to wait for
	// earlier work items changes nothing.
	Park bool
}

// Status is the outcome of a delivery.
type Status string

// Statuses of a delivery.
const (
	Routed       Status = "routed"       // the entries are on the runtime stream
	Parked       Status = "parked"       // accepted; routed after the earlier work items
	Invalid      Status = "invalid"      // the credential is unknown or expired
	Ended        Status = "ended"        // the channel has ended
	Consumed     Status = "consumed"     // already answered with another body
	Duplicate    Status = "duplicate"    // already answered with this body
	Cancelled    Status = "cancelled"    // the runtime cancelled the work item
	Stale        Status = "stale"        // the channel has another epoch; nothing changed
	Backpressure Status = "backpressure" // the runtime's backlog is full; nothing changed
	NotParked    Status = "not_parked"   // it would be parked, but Park is not set; nothing changed
	Streaming    Status = "streaming"    // a streamed answer has begun
	Missing      Status = "missing"      // the store has lost parts of a streamed answer
	Usable       Status = "usable"       // from CheckCredential only: a callback would be routed or parked
)

// DeliverResult is the result of a delivery.
type DeliverResult struct {
	Status  Status
	Receipt []byte // of the first callback, if Status is Duplicate
	// WaitsFor is the work item for which the callback waited when it was accepted, if
	// it was parked; otherwise nil.
	WaitsFor *AwaitedItem
	Number   int64  // of the work item in its channel, if Status is Parked
	Offer    []byte // wire.Offer as JSON, if no runtime has claimed the session; otherwise empty
}

// Accepted reports whether the entries are stored.
func (r DeliverResult) Accepted() bool { return r.Status == Routed || r.Status == Parked }

// AwaitedItem is a work item that was not answered yet.
type AwaitedItem struct {
	WorkItemID string    `json:"workItemId"`
	Deadline   time.Time `json:"deadline"` // when it times out
}

// StreamParams are parts of a streamed answer that are ready for the runtime stream, or
// its last line.
type StreamParams struct {
	Credential
	CallbackID string
	Epoch      string // of the channel
	// Digests is "+" and the digests of all parts so far, the newest ones included; with the
	// last line, also a dot and its digest.
	Digests string
	Parts   [][]byte // the entries of the newest parts
	// Last has the entries of the last line, which settles the work item; nil until it arrives.
	Last    [][]byte
	Receipt []byte // JSON, returned for duplicates; only with Last
	Park    bool   // as in DeliverParams
}

// CredentialState is the result of Store.CheckCredential.
type CredentialState struct {
	Status     Status
	TimeLeft   time.Duration // until it is invalid, which is later than its deadline if it was used
	OfWorkItem bool          // false: of a channel
}

// Offers announces sessions to runtimes.
type Offers interface {
	// Reoffer offers an unclaimed session. It does not block.
	Reoffer(offer []byte)
}

// ParkedItem is a work item whose answer waits for earlier work items.
type ParkedItem struct {
	ChannelID  string
	Number     int64
	Unfinished bool // a streamed answer without its last line
	Since      time.Time
}

// Channel holds the properties of a channel that are fixed for one epoch.
type Channel struct {
	Epoch         string
	TeamID        string
	Profile       []byte // gateway profile as JSON
	CallID        string
	TransactionID string
}

// ErrChannelNotFound is returned by Store.Channel.
var ErrChannelNotFound = fault.New(fault.NotFound, "Channel not found.")

// Store holds credentials and runtime streams. Each method is one round trip.
type Store interface {
	// Channel returns a channel or ErrChannelNotFound. An ended channel can be
	// found for some time.
	Channel(ctx context.Context, channelID string) (Channel, error)
	// CheckCredential returns Usable if a delivery with the credential would be
	// routed or parked, Streaming if a streamed answer has begun, and otherwise Invalid,
	// Ended, Consumed or Cancelled. It changes nothing.
	CheckCredential(ctx context.Context, c Credential) (CredentialState, error)
	// Deliver checks and consumes the credential and routes or parks the
	// entries in one atomic step. If the reply is lost, Deliver may be called again
	// with the same CallbackID and returns the same result.
	Deliver(ctx context.Context, p DeliverParams) (DeliverResult, error)
	// DeliverStream routes or parks parts of a streamed answer, or settles it, in one atomic
	// step. Parts that were delivered before are skipped, so it may be called again.
	DeliverStream(ctx context.Context, p StreamParams) (DeliverResult, error)
	// StillParked reports for each item whether it is still parked.
	StillParked(ctx context.Context, items []ParkedItem) ([]bool, error)
}
