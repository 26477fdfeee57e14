// Package callback accepts the callbacks of providers. It checks the
// credential, decodes the body, decides on the commands in it and delivers the
// entries to the runtime stream, once and in the order of the work items.
package callback

import (
	"context"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
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
	// Park allows to park the entries. Without it, a callback that has to wait for
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
	Usable       Status = "usable"       // from CheckCredential only: a callback would be routed or parked
)

// DeliverResult is the result of a delivery.
type DeliverResult struct {
	Status  Status
	Receipt []byte // of the first callback, if Status is Duplicate or Consumed
	// WaitsFor is the work item for which the callback waited when it was accepted, if
	// it was parked; otherwise nil.
	WaitsFor *AwaitedItem
	Number   int64  // of the work item in its channel, if Status is Parked
	Offer    []byte // wire.Offer as JSON, if no runtime has claimed the session; otherwise empty
}

// AwaitedItem is a work item that was not answered yet.
type AwaitedItem struct {
	WorkItemID string    `json:"workItemId"`
	Deadline   time.Time `json:"deadline"` // it times out then
}

// Offers announces sessions to runtimes.
type Offers interface {
	// Reoffer offers an unclaimed session. It does not block.
	Reoffer(offer []byte)
}

// ParkedItem is a work item whose answer waits for earlier work items.
type ParkedItem struct {
	ChannelID string
	Number    int64
	Since     time.Time
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
	// routed or parked, and otherwise Invalid, Ended, Consumed or Cancelled. It
	// changes nothing.
	CheckCredential(ctx context.Context, c Credential) (Status, error)
	// Deliver checks and consumes the credential and routes or parks the
	// entries in one atomic step. If the reply is lost, Deliver may be called again
	// with the same CallbackID and returns the same result.
	Deliver(ctx context.Context, p DeliverParams) (DeliverResult, error)
	// StillParked reports for each item whether it is still parked.
	StillParked(ctx context.Context, items []ParkedItem) ([]bool, error)
}

// Receipt is the answer to an accepted callback. The store keeps a copy for
// duplicates, without Status, WaitsFor and RequestID.
type Receipt struct {
	Status string `json:"status,omitzero"` // accepted or parked
	// WaitsFor is the first of the work items for which a parked callback waits.
	WaitsFor   *AwaitedItem      `json:"waitsFor,omitzero"`
	CallbackID string            `json:"callbackId"`
	Messages   int               `json:"messages"`
	Commands   []CommandDecision `json:"commands"`
	Ignored    []string          `json:"ignored,omitempty"` // JSON Pointers of members without effect, except those of commands
	RequestID  string            `json:"requestId,omitzero"`
}

// setWaitsFor sets the status and the work item for which the callback waits.
func (r *Receipt) setWaitsFor(first *AwaitedItem) {
	r.Status, r.WaitsFor = "accepted", first
	if first != nil {
		r.Status = "parked"
	}
}

// CommandDecision reports whether a command was allowed.
type CommandDecision struct {
	CommandID string   `json:"commandId,omitzero"`
	Type      string   `json:"type"`
	Decision  string   `json:"decision"` // allowed or denied
	Reason    string   `json:"reason,omitzero"`
	Ignored   []string `json:"ignored,omitempty"` // unknown members
}

// maxIgnored bounds the members of commands that a receipt lists.
const maxIgnored = 100

func newReceipt(callbackID string, entries []wire.Entry, decisions []command.Decision, ignored []strictjson.Warning) Receipt {
	r := Receipt{CallbackID: callbackID, Commands: reportDecisions(decisions)}
	for _, w := range ignored {
		r.Ignored = append(r.Ignored, w.Path)
	}
	for i := range entries {
		switch entries[i].Kind {
		case wire.KindBotMessage, wire.KindLLMResult, wire.KindToolResult:
			r.Messages++
		}
	}
	return r
}

func reportDecisions(decisions []command.Decision) []CommandDecision {
	report := make([]CommandDecision, len(decisions))
	left := maxIgnored
	for i, d := range decisions {
		common, decision := d.Command.Common(), "allowed"
		if d.Reason != "" {
			decision = "denied"
		}
		report[i] = CommandDecision{CommandID: common.CommandID, Type: common.Type, Decision: decision, Reason: d.Reason}
		for _, name := range d.Ignored[:min(len(d.Ignored), left)] {
			report[i].Ignored = append(report[i].Ignored, strictjson.Shorten(name))
			left--
		}
	}
	return report
}

// DryRun describes the effects that a callback would have.
type DryRun struct {
	Entries   []wire.Entry         `json:"entries"`
	Decisions []CommandDecision    `json:"decisions"`
	Warnings  []strictjson.Warning `json:"warnings"` // members without effect, as JSON Pointers below /body
}
