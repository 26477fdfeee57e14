// Package channel owns a live conversation as a browser sees it: the envelope
// of its frames, the cursor by which it resumes, and what a connection may do.
package channel

import (
	"context"
	"time"

	"telapi/callruntime/wire"
)

// Cursor is a position in the history towards the browser. Epoch names one life
// of the channel's streams: after the store was wiped another begins, and a
// cursor of the old one is good for nothing.
type Cursor struct {
	Epoch string
	ID    string // the stream's own id; empty: before everything
}

// Message is one durable frame of the history: the ChannelMessage as the
// runtime sent it, without its streamId.
type Message struct {
	Cursor Cursor
	JSON   []byte
}

// AttachRequest is a connection that wants to own a session's channel.
type AttachRequest struct {
	ChannelID    string
	ConnectionID string
	Succeeds     string        // the connection it continues, if it says so
	Reject       bool          // refuse when another connection is alive
	Lease        time.Duration // how long ownership lasts without Renew; 0: only ask
	// What the channel is opened with, should this be the first connection
	// or the store have lost it.
	TeamID, EndpointID, Mode, TransactionID string
	Profile                                 []byte // gatewayProfile as JSON
	// Resume is where the browser left off; nil: it does not say.
	Resume *Cursor
	// Entry is the stream entry that tells the runtime of the connection.
	Entry []byte
}

// AttachResult is what a connection starts with.
type AttachResult struct {
	Head      Cursor    // where this connection starts when it resumes nothing
	First     bool      // no connection came before: the history is a greeting
	Offer     bool      // no runtime has the channel: offer it
	TextChat  bool      // chat frames are welcome
	Recovered bool      // Resume was good; Missed is everything since
	Missed    []Message // what to replay, oldest first
}

// Outcome is what became of a frame.
type Outcome string

// The outcomes of Append.
const (
	Appended     Outcome = "appended"
	Duplicate    Outcome = "repeated"      // its messageId is on the stream already
	NotOwner     Outcome = "not_owner"     // another connection owns the session now
	Ended        Outcome = "ended"         // the channel has ended
	Lost         Outcome = "lost"          // the store does not know the channel: it was wiped
	ChatDisabled Outcome = "chat_disabled" // text chat is off
	Backpressure Outcome = "backpressure"  // the runtime is too far behind
)

// Owned is what Renew finds, where it does not find NotOwner, Ended or Lost.
const Owned Outcome = "owned"

// Frame is a browser's durable frame on its way to the runtime.
type Frame struct {
	MessageID string
	Chat      bool   // a chat frame: refused while text chat is off
	Switch    string // enable_text_chat or disable_text_chat; empty: neither
	Entry     []byte
}

// Store is the channel's place in the key-value store. Every method is one
// atomic script and one round trip; none may be repeated by the client when its
// reply is lost. An unreachable store is fault.ServiceUnavailable.
type Store interface {
	// Attach opens the channel where needed, takes ownership, tells the
	// connection before (if any) and the runtime, and reads the history. It
	// fails with fault.SessionInUse or fault.SessionEnded. Without a lease it
	// does nothing but that.
	Attach(ctx context.Context, a AttachRequest) (AttachResult, error)
	// Append puts a connection's frames on the runtime's stream, in their order
	// and each once per message id. Several cost little more than one.
	Append(ctx context.Context, channelID, connectionID string, frames []Frame) ([]Outcome, error)
	// Renew keeps ownership, if it is still this connection's. offer says that
	// no runtime has the channel and none was asked lately; with again, it is
	// not known whether any was.
	Renew(ctx context.Context, channelID, connectionID string, lease time.Duration, again bool) (outcome Outcome, offer bool, err error)
	// Offer puts a session before the runtimes, once one of Attach and Renew
	// says so. To do it twice is harmless.
	Offer(ctx context.Context, o wire.Offer) error
	// Detach gives ownership up, if it is still this connection's.
	Detach(ctx context.Context, channelID, connectionID string, entry []byte) error
	// Since reads what follows a cursor; false: history does not reach back.
	Since(ctx context.Context, channelID string, after Cursor) ([]Message, bool, error)
}

// Subscriber is what a connection hears while it is open.
type Subscriber interface {
	// Messages are durable frames that follow each other. After is the position
	// before the first: a listener that is elsewhere has missed something and
	// reads Since.
	Messages(after Cursor, list []Message)
	// Audio is a frame that is never stored.
	Audio(json []byte)
	// Replaced says that another connection took the session. A third may have
	// it by now, the listener among them.
	Replaced(connectionID string)
	// Closed says that the channel has ended, and why.
	Closed(reason string)
	// Gap says that messages may have been missed: the subscription was lost
	// and is back.
	Gap()
}

// Hub hands a channel's live messages to its connections. All channels of an
// instance share one subscription connection.
type Hub interface {
	// Subscribe calls l for a channel until stop is called. It returns once the
	// server has confirmed the subscription. Calls of one listener never
	// overlap and must not block.
	Subscribe(ctx context.Context, channelID string, l Subscriber) (stop func(), err error)
	// SendAudio publishes a browser's audio frame to the runtime.
	SendAudio(ctx context.Context, channelID string, json []byte) error
}
