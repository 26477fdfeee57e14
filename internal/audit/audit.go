// Package audit records the changes that administrators make. Stores write an
// entry in the transaction of the change it describes.
package audit

import (
	"context"
	"fmt"
	"maps"
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
)

// Actions lists all actions.
var Actions = []Action{CreateTeam, UpdateTeam, CreateKey, RevokeKey, CreateEndpoint, UpdateEndpoint, DeleteEndpoint, UpdateLimits, RevokeSession}

// Entry is one change. IDs sort by age.
type Entry struct {
	ID      string         `json:"id"`
	At      time.Time      `json:"at"`
	Actor   Actor          `json:"actor"`
	Action  Action         `json:"action"`
	Target  string         `json:"target"`          // as announced, such as key:ID
	TeamID  string         `json:"teamId,omitzero"` // of the target; empty for the rate limits
	Details jsontext.Value `json:"details"`         // a JSON object
}

// milliseconds marshals times with three decimals, so that they all have the same
// length.
var milliseconds = json.WithMarshalers(json.MarshalFunc(func(t time.Time) ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}))

// MarshalJSONTo implements json.MarshalerTo.
func (e Entry) MarshalJSONTo(enc *jsontext.Encoder) error {
	type plain Entry
	return json.MarshalEncode(enc, plain(e), milliseconds)
}

const idPrefix = "au_"

// New returns an entry for a change by the context's actor. details must marshal
// to a JSON object.
func New(ctx context.Context, at time.Time, action Action, target, teamID string, details any) (Entry, error) {
	raw, err := json.Marshal(details, json.Deterministic(true))
	if err != nil {
		return Entry{}, fmt.Errorf("encode details of %s: %w", action, err)
	}
	return Entry{
		ID: idPrefix + uuid.Must(uuid.NewV7()).String(), At: at, Actor: ActorFrom(ctx),
		Action: action, Target: target, TeamID: teamID, Details: raw,
	}, nil
}

// Change is the old and the new value of one member.
type Change struct {
	From jsontext.Value `json:"from,omitzero"` // absent if the member is new
	To   jsontext.Value `json:"to,omitzero"`   // absent if the member was removed
}

// Changes compares two values that marshal to JSON objects and returns the members
// that differ.
func Changes(before, after any) (map[string]Change, error) {
	from, err := members(before)
	if err != nil {
		return nil, err
	}
	to, err := members(after)
	if err != nil {
		return nil, err
	}
	changes := map[string]Change{}
	for name := range maps.Keys(from) {
		changes[name] = Change{From: from[name]}
	}
	for name, value := range to {
		if string(from[name]) == string(value) {
			delete(changes, name)
		} else {
			changes[name] = Change{from[name], value}
		}
	}
	return changes, nil
}

func members(v any) (members map[string]jsontext.Value, err error) {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err == nil {
		err = json.Unmarshal(raw, &members)
	}
	if err != nil {
		return nil, fmt.Errorf("compare versions: %w", err)
	}
	return members, nil
}

type actorKey struct{}

// WithActor returns a context whose changes are made by an actor.
func WithActor(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ActorFrom returns the context's actor, or System.
func ActorFrom(ctx context.Context) Actor {
	if a, ok := ctx.Value(actorKey{}).(Actor); ok {
		return a
	}
	return Actor{System, "telapi"}
}

// Query selects entries, newest first.
type Query struct {
	TeamID   string    // of the target; empty: all teams
	From, To time.Time // From is inclusive, To is not; zero: no bound
	page.Query
}

// ParseQuery reads the query parameters teamId, from, to, cursor and limit.
func ParseQuery(params map[string][]string) (q Query, err error) {
	var issues fault.Issues
	q.TeamID, _ = issues.QueryValue(params, "teamId")
	q.From = parseTime(params, "from", &issues)
	q.To = parseTime(params, "to", &issues)
	if !q.From.IsZero() && !q.To.IsZero() {
		issues.Check(q.From.Before(q.To), "/query/from", fault.IssueValue, "from must be before to.")
	}
	q.Query = page.Parse(params, page.UUID(idPrefix), &issues)
	return q, issues.Err()
}

func parseTime(params map[string][]string, name string, issues *fault.Issues) time.Time {
	value, _ := issues.QueryValue(params, name)
	if value == "" {
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
}

// List returns one page of entries.
func List(ctx context.Context, s Store, q Query) (page.Page[Entry], error) {
	return page.Read(q.Query, func(p page.Query) ([]Entry, error) {
		q.Query = p
		return s.AuditEntries(ctx, q)
	}, func(e Entry) string { return e.ID })
}
