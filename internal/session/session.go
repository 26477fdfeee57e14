// Package session manages a browser's call or chat from its token to its end.
//
// The database holds the state of a session. The key-value store only holds
// whether a browser is connected.
package session

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/team"
)

// State is the state of a session.
type State string

// A session is issued, then alternates between connected and disconnected, and
// ends in exactly one of the three final states.
const (
	Issued       State = "issued"
	Connected    State = "connected"
	Disconnected State = "disconnected"
	Ended        State = "ended"   // by the call runtime
	Expired      State = "expired" // not redeemed in time, too old, or idle
	Revoked      State = "revoked" // deleted by its team or an administrator
)

// States lists all states.
var States = []State{Issued, Connected, Disconnected, Ended, Expired, Revoked}

// DuplicatePolicy decides which connection survives if a browser opens a second
// one for the same session.
type DuplicatePolicy string

// Duplicate policies.
const (
	Replace DuplicatePolicy = "replace" // close the first connection
	Reject  DuplicatePolicy = "reject"  // reject the second connection
)

// Session is the record of one session. Its channel has the same ID. The JSON
// form is for the session's team.
type Session struct {
	ID              string           `json:"sessionId"`
	TeamID          string           `json:"-"`
	EndpointID      string           `json:"endpointId"`
	Mode            team.Mode        `json:"mode"`
	Identity        *wire.Identifier `json:"-"` // the browser's user according to the team
	Metadata        jsontext.Value   `json:"-"` // JSON object or nil
	DuplicatePolicy DuplicatePolicy  `json:"-"`
	// TokenID is random. If the request that created the session was traced, its
	// traceparent follows after a dot, so that sockets continue the trace.
	TokenID string `json:"-"`
	// IssuedAt, RedeemBy and ExpiresAt have whole seconds, as in the token.
	IssuedAt   time.Time `json:"issuedAt"`
	RedeemBy   time.Time `json:"redeemBy"`
	ExpiresAt  time.Time `json:"expiresAt"`
	RedeemedAt time.Time `json:"redeemedAt,omitzero"` // zero if not redeemed
	LastSeenAt time.Time `json:"-"`                   // last time a browser was connected
	EndedAt    time.Time `json:"endedAt,omitzero"`    // zero if not ended
	EndedAs    State     `json:"-"`                   // final state; empty if not ended
}

// State returns the session's state, given whether a browser is connected. A
// session counts as expired even before the sweeper has ended it.
func (s Session) State(now time.Time, connected bool) State {
	switch {
	case !s.EndedAt.IsZero():
		return s.EndedAs
	case s.RedeemedAt.IsZero() && now.Before(s.RedeemBy):
		return Issued
	case s.RedeemedAt.IsZero() || !now.Before(s.ExpiresAt):
		return Expired
	case connected:
		return Connected
	default:
		return Disconnected
	}
}

// IdempotencyRecord ties an idempotency key to the digest of the request body
// that it was first used with.
type IdempotencyRecord struct {
	Key    string // empty if the request has no key
	Digest string
	At     time.Time
}

// Store holds sessions in the database. Lookups of unknown sessions fail with
// fault.NotFound. An ended session is unsettled until its channel in the
// key-value store has ended too.
type Store interface {
	// CreateSession stores a session and its idempotency record in one
	// transaction. It returns false, and stores nothing, if the team's key has a
	// record after staleBefore. It waits for a concurrent request with the same
	// key.
	CreateSession(ctx context.Context, s Session, r IdempotencyRecord, staleBefore time.Time) (bool, error)
	// SessionByKey returns the session of a team's idempotency key and the
	// digest of the body that the key was used with.
	SessionByKey(ctx context.Context, teamID, key string, staleBefore time.Time) (Session, string, error)
	Session(ctx context.Context, id string) (Session, error)
	// Sessions returns a page of sessions, newest first.
	Sessions(ctx context.Context, q Query) ([]Session, error)
	// RedeemSession records a connection of the browser. A session that has
	// ended or expired, or whose team is disabled, is not found.
	RedeemSession(ctx context.Context, id string, at time.Time) error
	// EndSession ends a session once. It returns true for the call that ended
	// the session, and writes audit entries in the same transaction. A session
	// that is Ended is settled: the runtime has ended its channel.
	EndSession(ctx context.Context, id string, as State, at time.Time, entries ...audit.Entry) (bool, error)
	// SettleSessions marks ended sessions as settled.
	SettleSessions(ctx context.Context, ids []string) error
	// ExpireSessions ends up to limit sessions that have passed their deadline,
	// or that were redeemed and not seen since unseenSince. It returns the IDs of
	// the sessions that this call ended.
	ExpireSessions(ctx context.Context, now, unseenSince time.Time, limit int) ([]string, error)
	// StaleSessions lists redeemed sessions that have not ended and were last
	// seen before unseenSince, in order of ID. It starts after the ID in after.
	StaleSessions(ctx context.Context, unseenSince time.Time, after string, limit int) ([]string, error)
	// UnsettledSessions lists unsettled sessions that ended before endedBefore.
	UnsettledSessions(ctx context.Context, endedBefore time.Time, limit int) ([]Session, error)
	// TouchSessions records when browsers were seen. An older time does not
	// replace a newer one.
	TouchSessions(ctx context.Context, seen map[string]time.Time) error
	// PruneSessions deletes idempotency records from before keysBefore, and up to
	// limit settled sessions that ended before endedBefore, with their browser
	// actions.
	PruneSessions(ctx context.Context, keysBefore, endedBefore time.Time, limit int) error
	// AddBrowserActions stores actions. It ignores an action whose session ID and
	// message ID are stored already, and one that exceeds the limits of its
	// session. It returns the number of the latter.
	AddBrowserActions(ctx context.Context, actions []Action) (excess int, err error)
}

// Channels manages the sessions' channels in the key-value store.
type Channels interface {
	// EndChannel ends a session's channel, notifies its runtime and closes its
	// socket. It succeeds if the channel does not exist or has ended.
	EndChannel(ctx context.Context, channelID, reason string) error
	// Presence returns the channels with a connected browser and the channels
	// that have ended.
	Presence(ctx context.Context, channelIDs []string) (connected, ended []string, err error)
}
