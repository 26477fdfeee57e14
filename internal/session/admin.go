package session

import (
	"context"
	"fmt"
	"slices"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/page"
)

// Query selects sessions, newest first.
type Query struct {
	Teams page.Teams
	State State // empty: all states. A Store does not distinguish Connected and Disconnected
	Now   time.Time
	page.Query
}

// ParseQuery reads the query parameters state, cursor and limit.
func ParseQuery(params map[string][]string, issues *fault.Issues) Query {
	q := Query{Query: page.Parse(params, ValidID, issues)}
	if state, given := issues.QueryValue(params, "state"); given {
		q.State = State(state)
		fault.CheckOneOf(issues, "/query/state", q.State, States)
	}
	return q
}

// AdminView is a session as administrators see it.
type AdminView struct {
	TeamID string `json:"teamId"`
	View
}

// ValidID reports whether the ID of a session has the right form.
var ValidID = page.UUID(wire.SessionPrefix)

// List returns one page of sessions in their current states. A page of connected or
// disconnected sessions may be short although it is not the last one: only the
// key-value store knows who is connected.
func (s *Service) List(ctx context.Context, q Query) (page.Page[AdminView], error) {
	q.Now = s.Now()
	found, err := page.Read(q.Query, func(p page.Query) ([]Session, error) {
		q.Query = p
		return s.Store.Sessions(ctx, q)
	}, func(s Session) string { return s.ID })
	if err != nil {
		return page.Page[AdminView]{}, fmt.Errorf("list sessions: %w", err)
	}
	var active []string // connected or disconnected
	for _, session := range found.Data {
		if session.State(q.Now, false) == Disconnected {
			active = append(active, session.ID)
		}
	}
	var connected []string
	if len(active) > 0 {
		if connected, _, err = s.Channels.Presence(ctx, active); err != nil {
			return page.Page[AdminView]{}, fmt.Errorf("query presence: %w", err)
		}
	}
	views := page.Map(found, func(session Session) AdminView {
		return AdminView{session.TeamID, View{session, session.State(q.Now, slices.Contains(connected, session.ID))}}
	})
	if q.State != "" {
		views.Data = slices.DeleteFunc(views.Data, func(v AdminView) bool { return v.State != q.State })
	}
	return views, nil
}

// Revoke ends a session for an administrator, unless check fails for its team. A
// session that has ended keeps its final state.
func (s *Service) Revoke(ctx context.Context, id string, check func(teamID string) error) error {
	session, err := s.Store.Session(ctx, id)
	if err == nil {
		err = check(session.TeamID)
	}
	if err != nil {
		return fmt.Errorf("revoke session: %w", err)
	}
	return s.revoke(ctx, session, audit.New(ctx, s.Now(), audit.RevokeSession, "session:"+id, session.TeamID, nil, nil))
}
