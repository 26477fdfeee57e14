package wire

import (
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// RuntimePath is the path of the WebSocket of call runtimes, RuntimeProtocol its
// subprotocol.
const (
	RuntimePath     = "/ws/runtime"
	RuntimeProtocol = "telapi.runtime.v1"
)

// MaxRequest is the maximum size of a request in bytes. The service closes the connection after a
// larger frame.
const MaxRequest = 1 << 20

// Op is the operation of a runtime's request.
type Op string

// The operations.
const (
	OpHello   Op = "hello"
	OpAccept  Op = "accept"
	OpOpen    Op = "open"
	OpCommit  Op = "commit"
	OpSend    Op = "send"
	OpAudio   Op = "audio" // has no reply
	OpAwait   Op = "await"
	OpCancel  Op = "cancel"
	OpEnd     Op = "end"
	OpRelease Op = "release"
	OpReport  Op = "report"
)

// Request is the part that all requests of a runtime have. A runtime chooses the ID,
// which the reply repeats. Hello, Accept and Report have no channel, and Open has no claim.
type Request struct {
	ID      int64  `json:"id,omitzero"`
	Op      Op     `json:"op"`
	Channel string `json:"channel,omitzero"`
	// Claim is that of the channel. With it, a request that arrives late has no effect on a session
	// that the connection has accepted again. All Opens of a channel by a runtime return the same claim.
	Claim string `json:"claim,omitzero"`
	// Retry says that the runtime knows of a SERVICE_UNAVAILABLE on the channel. Until then, later
	// requests get it too, except commit and cancel, so that none overtakes a repeated one.
	Retry bool `json:"retry,omitzero"`
}

// Head returns r. All requests embed it, so that they have this method.
func (r Request) Head() Request { return r }

// Hello is the first request on a connection.
type Hello struct {
	Request
	Key      string   `json:"key,omitzero"` // API key or console JWT, if no header has it
	Name     string   `json:"name"`
	ResumeMs *int64   `json:"resumeMs,omitzero"` // how long a claim outlives its connection
	Resume   []Resume `json:"resume,omitzero"`
	// Previous is the ID of the runtime's last connection. Its claims that are not in
	// Resume are released at once: the runtime does not know of them, because a reply
	// was lost.
	Previous string `json:"previous,omitzero"`
}

// Resume names a claim of an earlier connection.
type Resume struct {
	Channel  string `json:"channel"`
	Claim    string `json:"claim"`
	Received string `json:"received,omitzero"` // position of the newest entry that the runtime has; a loss of it is reported
}

// Welcome is the reply to Hello.
type Welcome struct {
	Instance       string        `json:"instance"`
	Connection     string        `json:"connection"` // ID, for Hello.Previous
	Resumed        []Resumed     `json:"resumed"`    // those of Hello.Resume that the runtime still has
	PingIntervalMs int64         `json:"pingIntervalMs"`
	Limits         RuntimeLimits `json:"limits"`
}

// Resumed is a claim that goes on after the committed position.
type Resumed struct {
	Channel   string         `json:"channel"`
	Position  string         `json:"position"`
	WorkItems []OpenWorkItem `json:"workItems,omitzero"`
	LostAt    int64          `json:"lostAt,omitzero"`
}

// RuntimeLimits bound what a runtime may send and leave uncommitted.
type RuntimeLimits struct {
	FrameBytes    int64 `json:"frameBytes"`
	MessageBytes  int64 `json:"messageBytes"`
	Messages      int   `json:"messages"`      // in one Send
	PushedEntries int   `json:"pushedEntries"` // of a channel that are not committed
	PushedBytes   int64 `json:"pushedBytes"`   // of these entries
	Accepts       int   `json:"accepts"`       // outstanding at a time
	WorkItems     int   `json:"workItems"`     // of a channel that are open
	TTLMs         int64 `json:"ttlMs"`         // of Await
}

// Accept requests a session that no runtime has claimed. The reply arrives when there is one.
type Accept struct {
	Request
	Endpoints []string `json:"endpoints,omitzero"` // empty: every endpoint
	Modes     []string `json:"modes,omitzero"`     // empty: every mode
	// AwaitChat makes the service register a work item with each chat frame that arrives while the
	// claim lasts. Its push has the item.
	AwaitChat *AwaitChat `json:"awaitChat,omitzero"`
}

// AwaitChat describes work items of chat frames. Their IDs are the messageIds of the frames.
type AwaitChat struct {
	Kind  WorkItemKind `json:"kind,omitzero"`  // default: bot
	TTLMs *int64       `json:"ttlMs,omitzero"` // default: 5 minutes
}

// Open opens a channel without a browser, such as a phone call, or claims it.
type Open struct {
	Request
	Team          string         `json:"team,omitzero"` // default: the team of the key
	Endpoint      string         `json:"endpoint"`
	Mode          string         `json:"mode,omitzero"`
	Profile       jsontext.Value `json:"profile,omitzero"` // a GatewayProfile
	CallID        string         `json:"callId,omitzero"`
	TransactionID string         `json:"transactionId,omitzero"`
}

// Claimed is the reply to Accept and Open. Claim is a secret with which the runtime
// resumes after a reconnect.
type Claimed struct {
	Channel       string         `json:"channel"`
	Claim         string         `json:"claim"`
	Team          string         `json:"team"`
	Endpoint      string         `json:"endpoint"`
	Mode          string         `json:"mode,omitzero"`
	CallID        string         `json:"callId,omitzero"`
	TransactionID string         `json:"transactionId,omitzero"`
	Session       *Offer         `json:"session,omitzero"` // missing for a channel without a browser
	Profile       jsontext.Value `json:"profile,omitzero"`
	Position      string         `json:"position"` // committed; empty: none
	WorkItems     []OpenWorkItem `json:"workItems,omitzero"`
	LostAt        int64          `json:"lostAt,omitzero"` // Unix ms at which the store was last found to have lost data of the channel
}

// OpenWorkItem is a work item, or a channel credential, whose result can still arrive or
// is parked.
type OpenWorkItem struct {
	WorkItemID string       `json:"workItemId"`
	Kind       WorkItemKind `json:"kind"`
	Scope      Scope        `json:"scope"`
	Deadline   int64        `json:"deadline"`        // Unix ms
	Parked     bool         `json:"parked,omitzero"` // the result waits for those of earlier items
}

// Scope determines how often a credential can be used.
type Scope string

// The scopes.
const (
	// ScopeItem credentials are consumed by the first result. Results arrive in the
	// order in which their work items were registered.
	ScopeItem Scope = "item"
	// ScopeChannel credentials accept any number of results until they expire or
	// the channel ends. Each result arrives at once.
	ScopeChannel Scope = "channel"
)

// Commit marks all entries up to a position as handled.
type Commit struct {
	Request
	Position string `json:"position"`
}

// Send sends durable messages to the browser, each once per MessageID.
type Send struct {
	Request
	Messages []ChannelMessage `json:"messages"`
}

// Sent is the reply to Send.
type Sent struct {
	MessageIDs []string `json:"messageIds"` // in the order of the messages
}

// SendAudio sends an audio frame. It has no reply.
type SendAudio struct {
	Request
	Message ChannelMessage `json:"message"`
}

// Await registers a work item, so that a provider can post its result.
type Await struct {
	Request
	WorkItemID string       `json:"workItemId,omitzero"` // default: a random one
	Kind       WorkItemKind `json:"kind,omitzero"`       // default: bot
	Scope      Scope        `json:"scope,omitzero"`      // default: item
	TTLMs      *int64       `json:"ttlMs,omitzero"`      // default: 5 minutes
	Trace      Trace        `json:"trace,omitzero"`      // of the entry that caused the request
}

// Awaited is the reply to Await: what a provider needs to post its result.
type Awaited struct {
	WorkItemID string `json:"workItemId"`
	Token      string `json:"token"` // the credential
	URL        string `json:"url"`
	Deadline   int64  `json:"deadline"` // Unix ms
}

// LogValue omits the credential.
func (a Awaited) LogValue() slog.Value {
	return slog.GroupValue(slog.String("workItemId", a.WorkItemID), slog.String("url", a.URL), slog.Int64("deadline", a.Deadline))
}

// Cancel cancels a work item.
type Cancel struct {
	Request
	WorkItemID string `json:"workItemId"`
}

// End ends a channel for all participants.
type End struct {
	Request
	Reason string `json:"reason,omitzero"`
}

// Report reports the usage of texts that the runtime synthesized.
type Report struct {
	Request
	Reports []SpeechReport `json:"reports"`
}

// Reply is the answer to a request: OK or Error is set.
type Reply struct {
	ID    int64          `json:"id"`
	OK    jsontext.Value `json:"ok,omitzero"`
	Error *RuntimeError  `json:"error,omitzero"`
}

// RuntimeError says why a request failed, with a code of docs/errors.md.
type RuntimeError struct {
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Details jsontext.Value `json:"details,omitzero"`
}

// Error returns code and message.
func (e *RuntimeError) Error() string { return e.Code + ": " + e.Message }

// Is reports whether another error has the same code.
func (e *RuntimeError) Is(other error) bool {
	o, is := other.(*RuntimeError)
	return is && o.Code == e.Code
}

// PushEvent is the type of a Push.
type PushEvent string

// The events.
const (
	PushEntry     PushEvent = "entry"      // the next entry of a channel
	PushAudio     PushEvent = "audio"      // an audio frame of a channel's browser
	PushClaimLost PushEvent = "claim_lost" // another connection has the channel
	PushLost      PushEvent = "lost"       // the store lost data of the channel that it had acknowledged
	PushDrain     PushEvent = "drain"      // the instance shuts down; reconnect
	PushError     PushEvent = "error"      // why the service closes the connection
)

// Push is a frame that the service sends without a request.
type Push struct {
	Event    PushEvent       `json:"event"`
	Channel  string          `json:"channel,omitzero"`
	Claim    string          `json:"claim,omitzero"`    // claim_lost: the claim that ended
	Position string          `json:"position,omitzero"` // entry
	Entry    jsontext.Value  `json:"entry,omitzero"`
	WorkItem *Awaited        `json:"workItem,omitzero"` // entry: that of a chat frame, see Accept.AwaitChat
	Message  *ChannelMessage `json:"message,omitzero"`  // audio
	At       int64           `json:"at,omitzero"`       // lost: Unix ms of the store's clock
	// WithinMs is how soon the connection ends: drain.
	WithinMs *int64        `json:"withinMs,omitzero"`
	Error    *RuntimeError `json:"error,omitzero"`
}

// Frame decodes any frame that the service sends to a runtime: a Push, or a Reply if it has an
// ID.
type Frame struct {
	Push
	ID int64          `json:"id,omitzero"`
	OK jsontext.Value `json:"ok,omitzero"`
}

// RetryAfter returns how long to wait before a request is repeated: the member retryAfterMs of the
// error's details; default 1 s. It returns false if the frame does not ask for a repetition.
func (f *Frame) RetryAfter() (delay time.Duration, ok bool) {
	if f == nil || f.Error == nil || f.Error.Code != "SERVICE_UNAVAILABLE" {
		return 0, false
	}
	var details struct {
		RetryAfterMs int64 `json:"retryAfterMs"`
	}
	if json.Unmarshal(f.Error.Details, &details) != nil || details.RetryAfterMs < 1 {
		return time.Second, true
	}
	return time.Duration(details.RetryAfterMs) * time.Millisecond, true
}

// EntryNumber returns the number of the entry at a position: entries of a channel are
// numbered from 1 on. It is 0 for the position before the first entry.
func EntryNumber(position string) int64 {
	number, _, _ := strings.Cut(position, "-")
	n, _ := strconv.ParseInt(number, 10, 64) // 0 if invalid
	return n
}
