// Package channel connects a browser's WebSocket to its session's channel. It
// parses and writes frames, resumes from cursors and enforces the limits of a
// connection.
package channel

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"regexp"
	"time"

	"telapi/callruntime/wire"
)

// Message is one message of the history. JSON is the ChannelMessage as the runtime
// sent it, without a streamId.
type Message struct {
	Cursor Cursor
	JSON   []byte
}

// AttachRequest makes a connection the owner of a session's channel.
type AttachRequest struct {
	ChannelID    string
	ConnectionID string
	Predecessor  string // ID of the connection that this one resumes; may be empty
	// RejectDuplicate makes Attach fail if another connection than the predecessor owns the
	// session.
	RejectDuplicate bool
	Lease           time.Duration // duration of the ownership; Renew extends it
	// These are used to open the channel if it does not exist or was lost.
	TeamID, EndpointID, Mode string
	Profile                  []byte // gatewayProfile as JSON
	// Resume is the last cursor that the browser has received; nil if it has
	// none.
	Resume *Cursor
	// Entry is added to the runtime stream to report the connection.
	Entry []byte
	// Offer is the session's wire.Offer as JSON, which a runtime receives with
	// its claim.
	Offer []byte
}

// AttachResult is the state that a connection starts with.
type AttachResult struct {
	Number    string    // of the connection among those of its session
	Head      Cursor    // newest message of the history
	LastEntry string    // ID of the newest entry of the runtime stream; empty if replicas may not have it
	Offer     bool      // the channel is unclaimed: call Store.Offer
	Expired   bool      // with Offer: the claim of a runtime has expired
	TextChat  bool      // chat frames are accepted
	Recovered bool      // the history has everything after Resume
	Missed    []Message // first page of the messages to replay, oldest first; Since returns the rest
}

// Owner identifies a connection, and the newest data that the store acknowledged
// to it. The store compares whole IDs: a failover may have lost that data.
type Owner struct {
	ChannelID    string
	ConnectionID string
	Number       string // from AttachResult
	Cursor       Cursor // of the newest message; used by Renew
	LastEntry    string // from AttachResult or Append
}

// RenewResult is the result of renewing an ownership.
type RenewResult struct {
	Outcome Outcome
	Offer   bool   // no runtime has claimed the session and no offer is pending: call Store.Offer
	Expired bool   // with Offer: the claim of a runtime has expired
	Newest  string // ID of the newest message of the history
}

// Outcome is the result of appending a frame or renewing ownership.
type Outcome string

// Outcomes of Append and Renew.
const (
	Appended     Outcome = "appended"
	Duplicate    Outcome = "repeated"      // a frame with this message ID was appended before
	ChatDisabled Outcome = "chat_disabled" // text chat is off
	Backpressure Outcome = "backpressure"  // the runtime's backlog or the store is full
	Owned        Outcome = "owned"         // Renew extended the lease
	NotOwner     Outcome = "not_owner"     // another connection owns the session
	Expired      Outcome = "expired"       // the lease has expired and no connection owns the session
	Ended        Outcome = "ended"         // the channel has ended
	Lost         Outcome = "lost"          // the store has lost the channel, this connection, or data that it acknowledged
)

// Frame is a durable frame from the browser to the runtime.
type Frame struct {
	MessageID string
	Chat      bool   // rejected while text chat is disabled
	Switch    string // enable_text_chat, disable_text_chat or empty
	Entry     []byte
	// Item is the digest of the credential of a chat frame's work item, and the member trace of its
	// timeout entry after a comma. The store registers it if the runtime has asked for that.
	Item string
}

// ErrNotSent means that an operation failed before it was sent to the store.
var ErrNotSent = errors.New("not connected")

// Store holds channels in the key-value store. Each method is one atomic
// operation in one round trip. Methods fail with fault.ServiceUnavailable if the
// store is unreachable. The operation may then have had its effect, but has none
// later.
type Store interface {
	// Attach opens the channel if needed, takes ownership, notifies the
	// previous owner and the runtime, and reads the history. It fails with
	// fault.SessionInUse or fault.SessionEnded.
	Attach(ctx context.Context, r AttachRequest) (AttachResult, error)
	// CheckAttach returns the error that Attach would return now, without
	// changing anything. It ignores the fields of r that only matter to a
	// successful Attach.
	CheckAttach(ctx context.Context, r AttachRequest) error
	// Append adds frames to the runtime stream, in order, each message ID once.
	// It returns one outcome per frame. lastEntry is the ID of the newest entry.
	Append(ctx context.Context, owner Owner, frames []Frame) (outcomes []Outcome, lastEntry string, err error)
	// Renew extends the lease if the connection still owns the session and the
	// store has kept all data that it acknowledged. With reoffer, the session is offered
	// again, because the last offer may have failed.
	Renew(ctx context.Context, owner Owner, lease time.Duration, reoffer bool) (RenewResult, error)
	// Offer announces an unclaimed session to the runtimes. It does nothing
	// while an earlier offer of the session waits for a runtime.
	Offer(ctx context.Context, o wire.Offer) error
	// Claims returns the claim of each channel, or nil if the channel is not open.
	// It need not be atomic.
	Claims(ctx context.Context, channelIDs []string) ([]*Claim, error)
	// Detach releases the ownership if the connection still has it. Without an
	// owner.Number it also cancels an Attach whose outcome is unknown.
	Detach(ctx context.Context, owner Owner, entry []byte) error
	// Since returns the first page of the messages after a cursor. The page is
	// empty if there are none. It returns false if the history no longer
	// contains all of them.
	Since(ctx context.Context, channelID string, after Cursor) ([]Message, bool, error)
	// Subscribe delivers the notifications of a channel to s until cancel is called. It
	// returns after the server has confirmed the subscription. All channels of an
	// instance share one connection for this.
	Subscribe(ctx context.Context, channelID string, s Subscriber) (cancel func(), err error)
	// SendAudio publishes a browser's audio frame to the runtime.
	SendAudio(ctx context.Context, channelID string, json []byte) error
}

// Subscriber receives the live notifications of a channel. Calls to one
// subscriber do not overlap, and its methods must not block.
type Subscriber interface {
	// Messages delivers consecutive messages of the history. after is the
	// cursor before the first one. A subscriber at another cursor has
	// missed messages and reads them with Store.Since.
	Messages(after Cursor, list []Message)
	// Audio delivers an audio frame. Audio is not part of the history.
	Audio(json []byte)
	// Replaced reports that the given connection took over the session, or, if
	// connectionID is empty, that the subscriber should renew its ownership. The
	// report may be outdated: the subscriber may own the session again.
	Replaced(connectionID string)
	// Closed reports that the channel has ended.
	Closed(reason string)
	// Gap reports that the subscription was interrupted and that messages may
	// be missing.
	Gap()
}

// Start is the cursor of a browser that lost its connection before it received a
// cursor. It resumes from the start of the current epoch.
const Start = "start"

const (
	anyEpoch  = "*"   // never part of an issued cursor
	beginning = "0-0" // encoded form of an empty ID
)

var cursorPattern = regexp.MustCompile(`^([A-Za-z0-9]{1,64})\.([0-9]{1,19}-[0-9]{1,19})$`)

// Cursor is a place in the history. Epoch identifies one version of the
// channel's data. Resuming from a cursor of another epoch fails.
type Cursor struct {
	Epoch string
	ID    string // stream ID; empty before the first message
}

// String returns the cursor as an opaque string for browsers.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.Epoch + "." + cmp.Or(c.ID, beginning)))
}

// parseCursor parses Start or the result of String.
func parseCursor(s string) (c Cursor, ok bool) {
	if s == Start {
		return Cursor{Epoch: anyEpoch}, true
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	m := cursorPattern.FindSubmatch(raw)
	if err != nil || m == nil {
		return Cursor{}, false
	}
	c = Cursor{string(m[1]), string(m[2])}
	if c.ID == beginning {
		c.ID = ""
	}
	return c, true
}
