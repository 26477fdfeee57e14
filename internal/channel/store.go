// Package channel connects a browser's WebSocket to its session's channel. It
// parses and writes frames, resumes from cursors and enforces the limits of a
// connection.
package channel

import (
	"context"
	"time"

	"telapi/callruntime/wire"
)

// Message is one durable message of the history: the ChannelMessage as the
// runtime sent it, without its streamId.
type Message struct {
	Cursor Cursor
	JSON   []byte
}

// AttachRequest makes a connection the owner of a session's channel.
type AttachRequest struct {
	ChannelID    string
	ConnectionID string
	Succeeds     string        // connection that this one continues; may be empty
	Reject       bool          // fail while another connection owns the session
	Lease        time.Duration // of the ownership; Renew extends it
	// The channel is opened with these if it does not exist or was lost.
	TeamID, EndpointID, Mode string
	Profile                  []byte // gatewayProfile as JSON
	// Resume is the last position that the browser has seen; nil to start anew.
	Resume *Cursor
	// Entry notifies the runtime of the connection.
	Entry []byte
}

// AttachResult is the state that a connection starts with.
type AttachResult struct {
	Head      Cursor    // newest message of the history
	Offer     bool      // the channel is unclaimed: call Store.Offer
	TextChat  bool      // chat frames are accepted
	Recovered bool      // Missed holds everything after Resume
	Missed    []Message // messages to replay, oldest first
}

// Outcome is the result of appending a frame or renewing an ownership.
type Outcome string

// Outcomes of Append and Renew.
const (
	Appended     Outcome = "appended"
	Duplicate    Outcome = "repeated"      // the message ID is in the stream already
	ChatDisabled Outcome = "chat_disabled" // text chat is off
	Backpressure Outcome = "backpressure"  // the runtime is too far behind
	Owned        Outcome = "owned"         // Renew extended the lease
	NotOwner     Outcome = "not_owner"     // another connection owns the session
	Ended        Outcome = "ended"         // the channel has ended
	Lost         Outcome = "lost"          // the store has lost the channel
)

// Frame is a durable frame from the browser to the runtime.
type Frame struct {
	MessageID string
	Chat      bool   // subject to the text chat switch
	Switch    string // enable_text_chat, disable_text_chat or empty
	Entry     []byte
}

// Store holds channels in the key-value store. Each method is one atomic
// operation in one round trip. Callers must not repeat an operation whose reply
// was lost. Methods fail with fault.ServiceUnavailable if the store is
// unreachable.
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
	// It returns one outcome per frame.
	Append(ctx context.Context, channelID, connectionID string, frames []Frame) ([]Outcome, error)
	// Renew extends the lease if the connection still owns the session. It
	// reports whether the session must be offered: no runtime has claimed it,
	// and no offer is pending. retry ignores pending offers, since they may
	// have failed.
	Renew(ctx context.Context, channelID, connectionID string, lease time.Duration, retry bool) (outcome Outcome, offer bool, err error)
	// Offer announces an unclaimed session to the runtimes. Repeated offers are
	// harmless.
	Offer(ctx context.Context, o wire.Offer) error
	// Detach releases the ownership if the connection still has it.
	Detach(ctx context.Context, channelID, connectionID string, entry []byte) error
	// Since returns the messages after a cursor. It returns false if the
	// history no longer contains all of them.
	Since(ctx context.Context, channelID string, after Cursor) ([]Message, bool, error)
}

// Subscriber receives the live notifications of a channel. Calls to one
// subscriber do not overlap, and its methods must not block.
type Subscriber interface {
	// Messages delivers consecutive durable messages. after is the position
	// before the first: a subscriber at another position has missed some and
	// reads them with Store.Since.
	Messages(after Cursor, list []Message)
	// Audio delivers a frame that is never stored.
	Audio(json []byte)
	// Replaced reports that a connection took the session over. The report may
	// be outdated: the subscriber itself may own the session again.
	Replaced(connectionID string)
	// Closed reports that the channel has ended.
	Closed(reason string)
	// Gap reports that the subscription was interrupted and messages may have
	// been missed.
	Gap()
}

// Hub delivers notifications to subscribers. All channels of an instance share
// one connection to the store.
type Hub interface {
	// Subscribe calls s for a channel until cancel is called. It returns after
	// the server has confirmed the subscription.
	Subscribe(ctx context.Context, channelID string, s Subscriber) (cancel func(), err error)
	// SendAudio publishes a browser's audio frame to the runtime.
	SendAudio(ctx context.Context, channelID string, json []byte) error
}
