// Package session owns a browser's call or chat from the token that opens it to
// its end: who is given one, until when it may be used, what becomes of it, and
// what its browser did meanwhile.
//
// The database holds a session's life, and the handshake of a socket reads it
// there. The key-value store holds only whether a browser is connected.
package session

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/endpoint"
)

// State is where a session stands.
type State string

// A session is issued, then connected and disconnected in turns, and comes to
// exactly one of three ends.
const (
	Issued       State = "issued"
	Connected    State = "connected"
	Disconnected State = "disconnected"
	Ended        State = "ended"   // by the call runtime
	Expired      State = "expired" // never redeemed, over its time, or idle
	Revoked      State = "revoked" // deleted by its team
)

// States lists them all.
var States = []State{Issued, Connected, Disconnected, Ended, Expired, Revoked}

// DuplicatePolicy says what a second connection of a session does to the first.
type DuplicatePolicy string

// The policies.
const (
	Replace DuplicatePolicy = "replace"
	Reject  DuplicatePolicy = "reject"
)

// Session is the record of one session. Its id is its channel's id too.
type Session struct {
	ID              string
	TeamID          string
	EndpointID      string
	Mode            endpoint.Mode
	Identity        *wire.Identifier // who the team says its browser is
	Metadata        jsontext.Value   // an object; nil: none
	DuplicatePolicy DuplicatePolicy
	TokenID         string
	// Moments of the token have whole seconds, so that it says what is kept.
	IssuedAt   time.Time
	RedeemBy   time.Time
	ExpiresAt  time.Time
	RedeemedAt time.Time // zero: never
	LastSeenAt time.Time // when a browser was last known to be connected
	EndedAt    time.Time // zero: not ended
	EndedAs    State
}

// State is where the session stands, given whether a browser is connected now.
// One that is over its time counts as expired before the sweeper has come by.
func (s Session) State(now time.Time, live bool) State {
	switch {
	case !s.EndedAt.IsZero():
		return s.EndedAs
	case !now.Before(s.due()):
		return Expired
	case s.RedeemedAt.IsZero():
		return Issued
	case live:
		return Connected
	default:
		return Disconnected
	}
}

// due is when the session ends unless something happens before.
func (s Session) due() time.Time {
	if s.RedeemedAt.IsZero() {
		return s.RedeemBy
	}
	return s.ExpiresAt
}

// IdempotencyRecord is what an idempotency key stands for: the digest of the request's
// canonical body, and since when.
type IdempotencyRecord struct {
	Key    string // empty: the request had none
	Digest string
	At     time.Time
}

// Store keeps sessions. Lookups of what is not there fail with fault.NotFound.
type Store interface {
	// CreateSession adds a session and the receipt of its key in one
	// transaction. It returns false, and adds nothing, where the team's key
	// has a receipt of later than staleBefore; a request with the same key
	// that is under way is waited for.
	CreateSession(ctx context.Context, s Session, r IdempotencyRecord, staleBefore time.Time) (bool, error)
	// SessionByKey finds the session that a key of the team stands for, and the
	// digest of the body it was used with.
	SessionByKey(ctx context.Context, teamID, key string, staleBefore time.Time) (Session, string, error)
	Session(ctx context.Context, id string) (Session, error)
	// RedeemSession notes the first redemption and that the browser was seen.
	// A session that has ended or is over its time is not found.
	RedeemSession(ctx context.Context, id string, at time.Time) error
	// EndSession ends a session once: true is returned to one caller alone,
	// and its reason stays.
	EndSession(ctx context.Context, id string, as State, at time.Time) (bool, error)
	// SettleSessions notes that everybody was told of the end of these.
	SettleSessions(ctx context.Context, ids []string) error
}

// Channels is the live side of sessions, in the key-value store.
type Channels interface {
	// EndChannel ends the channel of a session, tells its runtime and closes
	// its socket. One that is not there, or has ended, is no error.
	EndChannel(ctx context.Context, channelID, reason string) error
	// Presence tells which of the channels a browser is connected to, and which
	// have ended.
	Presence(ctx context.Context, channelIDs []string) (connected, ended []string, err error)
}
