// Package audit records the changes that administrators make, and requests for
// changes that were rejected. Stores write an entry in the transaction of the change
// it describes. Entries are small and are deleted after a time.
package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/internal/fault"
	"telapi/internal/page"
)

// ActorType is the way in which a change was requested.
type ActorType string

// Types of actors.
const (
	APIKey  ActorType = "api_key" // the ID is that of the key
	Console ActorType = "console" // the ID is the sub claim of the JWT
	CLI     ActorType = "cli"     // the ID is the name of the operating system's user
	System  ActorType = "system"  // the service itself
)

// ActorTypes lists all types.
var ActorTypes = []ActorType{APIKey, Console, CLI, System}

// Actor is who made a change.
type Actor struct {
	Type ActorType `json:"type"`
	ID   string    `json:"id"`
}

// Action is the kind of change that an entry records.
type Action string

// The actions.
const (
	CreateTeam     Action = "team.create"
	UpdateTeam     Action = "team.update"
	CreateKey      Action = "key.create"
	RevokeKey      Action = "key.revoke"
	CreateEndpoint Action = "endpoint.create"
	UpdateEndpoint Action = "endpoint.update"
	DeleteEndpoint Action = "endpoint.delete"
	UpdateLimits   Action = "limits.update"
	RevokeSession  Action = "session.revoke"
	RejectRequest  Action = "request.reject" // see Rejections
)

// Actions lists all actions.
var Actions = []Action{CreateTeam, UpdateTeam, CreateKey, RevokeKey, CreateEndpoint, UpdateEndpoint, DeleteEndpoint, UpdateLimits, RevokeSession, RejectRequest}

// Entry is one change, or the rejected requests of one actor. IDs sort by age.
type Entry struct {
	ID      string         `json:"id"`
	At      time.Time      `json:"at"`
	Actor   Actor          `json:"actor"`
	Action  Action         `json:"action"`
	Target  string         `json:"target"`          // such as key:ID, which is also announced to caches
	TeamID  string         `json:"teamId,omitzero"` // of the target, or of the actor that was rejected; empty for the rate limits
	Details jsontext.Value `json:"details"`         // a JSON object: changes, or rejectedDetails
}

// milliseconds marshals times with exactly three decimals.
var milliseconds = json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}))

// MarshalJSONTo implements json.MarshalerTo.
func (e Entry) MarshalJSONTo(enc *jsontext.Encoder) error {
	type plain Entry // without this method
	return json.MarshalEncode(enc, plain(e), milliseconds)
}

const idPrefix = "au_"

// New returns an entry for a change by the context's actor, or else by the service. It has
// the differences between two versions, which marshal to JSON objects. nil stands for no version.
func New(ctx context.Context, at time.Time, action Action, target, teamID string, before, after any) Entry {
	actor, ok := ctx.Value(actorKey{}).(Actor)
	if !ok {
		actor = systemActor
	}
	return newEntry(actor, at, action, target, teamID, compare(before, after))
}

func newEntry(actor Actor, at time.Time, action Action, target, teamID string, details any) Entry {
	return Entry{
		ID: idPrefix + uuid.Must(uuid.NewV7()).String(), At: at, Actor: actor,
		Action: action, Target: target, TeamID: teamID, Details: encode(details),
	}
}

// encode returns v as JSON. It panics if the type of v cannot be encoded, which is a
// programming error.
func encode(v any) jsontext.Value {
	raw, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(fmt.Sprintf("encode an audit entry: %v", err))
	}
	return raw
}

// FirstID returns the smallest ID that an entry of a time can have. The IDs of older
// entries are smaller.
func FirstID(at time.Time) string {
	ms := max(0, at.UnixMilli())
	return fmt.Sprintf(idPrefix+"%08x-%04x-0000-0000-000000000000", ms>>16, ms&0xffff)
}

type actorKey struct{}

// WithActor returns a context whose changes are made by an actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// systemActor is the author of changes by the service itself.
var systemActor = Actor{System, "telapi"}

// Query selects entries, newest first.
type Query struct {
	Teams    page.Teams // of the targets
	From, To time.Time  // From is inclusive, To is not; zero: no bound
	page.Query
}

// ParseQuery reads the query parameters from, to, cursor and limit.
func ParseQuery(params map[string][]string, issues *fault.Issues) (q Query) {
	q.From = parseTime(params, "from", issues)
	q.To = parseTime(params, "to", issues)
	if !q.From.IsZero() && !q.To.IsZero() {
		issues.Check(q.From.Before(q.To), "/query/from", fault.IssueValue, "from must be before to.")
	}
	q.Query = page.Parse(params, page.UUID(idPrefix), issues)
	return q
}

func parseTime(params map[string][]string, name string, issues *fault.Issues) time.Time {
	value, given := issues.QueryValue(params, name)
	if !given {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, value)
	issues.Check(err == nil && t.Year() >= 1970 && t.Year() < 10_000, "/query/"+name, fault.IssueValue,
		"Must be a time such as 2026-11-16T00:00:00Z.")
	return t
}

// Store holds entries.
type Store interface {
	// AuditEntries returns up to q.Limit entries, newest first, starting after the
	// ID in q.After.
	AuditEntries(ctx context.Context, q Query) ([]Entry, error)
	// AddAuditEntries adds entries that belong to no change.
	AddAuditEntries(ctx context.Context, entries ...Entry) error
	// DeleteAuditEntries deletes up to limit entries that are older than a time, the
	// oldest first, and returns their number.
	DeleteAuditEntries(ctx context.Context, before time.Time, limit int) (int64, error)
}

// List returns one page of entries.
func List(ctx context.Context, s Store, q Query) (page.Page[Entry], error) {
	return page.Read(q.Query, func(p page.Query) ([]Entry, error) {
		q.Query = p
		return s.AuditEntries(ctx, q)
	}, func(e Entry) string { return e.ID })
}
