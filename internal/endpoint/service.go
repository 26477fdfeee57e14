package endpoint

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

const (
	defaultPageSize = 50
	maxPageSize     = 200
)

// View is an endpoint in a team's list.
type View struct {
	ID             string              `json:"id"`
	Name           string              `json:"name"`
	Enabled        bool                `json:"enabled"`
	Modes          []Mode              `json:"modes"`
	Capabilities   Summary             `json:"capabilities"`
	GatewayProfile wire.GatewayProfile `json:"gatewayProfile"`
}

// Page is one page of a team's list. NextCursor is nil on the last page.
type Page struct {
	Data       []View  `json:"data"`
	NextCursor *string `json:"nextCursor"`
}

// Service manages endpoints. ListPage and Capabilities need Deployment, Create and
// Update need Now.
type Service struct {
	Store      Store
	Deployment Deployment
	Now        func() time.Time
}

// Create stores a new endpoint with a new ID and enables it.
func (s *Service) Create(ctx context.Context, e Endpoint) (Endpoint, error) {
	id := uuid.Must(uuid.NewV7()) // IDs sort by age
	e.ID, e.Enabled, e.CreatedAt = idPrefix+id.String(), true, s.Now()
	if err := s.prepare(&e); err != nil {
		return Endpoint{}, err
	}
	if err := s.Store.CreateEndpoint(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	return e, nil
}

// Update applies change to an endpoint. Concurrent updates are applied one
// after the other.
func (s *Service) Update(ctx context.Context, id string, change func(*Endpoint)) (Endpoint, error) {
	return s.Store.UpdateEndpoint(ctx, id, func(e *Endpoint) error {
		change(e)
		return s.prepare(e)
	})
}

func (s *Service) prepare(e *Endpoint) error {
	e.UpdatedAt = s.Now()
	return e.Validate()
}

// Get returns a team's endpoint. An endpoint of another team is not found: a
// team cannot learn which IDs others have.
func (s *Service) Get(ctx context.Context, teamID, id string) (Endpoint, error) {
	e, err := s.Store.Endpoint(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && e.TeamID != teamID {
		return Endpoint{}, fault.New(fault.NotFound, "Endpoint not found.")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("get endpoint: %w", err)
	}
	return e, nil
}

// Capabilities returns the JSON document about one of a team's endpoints.
func (s *Service) Capabilities(ctx context.Context, teamID, id string) ([]byte, error) {
	e, err := s.Get(ctx, teamID, id)
	if err != nil {
		return nil, err
	}
	return s.Deployment.endpointCapabilities(e)
}

// ListPage returns one page of a team's endpoints, oldest first. It reads the
// query parameters cursor and limit.
func (s *Service) ListPage(ctx context.Context, teamID string, params map[string][]string) (Page, error) {
	after, limit, err := parsePage(params)
	if err != nil {
		return Page{}, err
	}
	// One endpoint more than the limit shows whether there is a next page.
	found, err := s.Store.Endpoints(ctx, teamID, after, limit+1)
	if err != nil {
		return Page{}, fmt.Errorf("list endpoints: %w", err)
	}
	var page Page
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = &found[limit-1].ID
	}
	page.Data = make([]View, len(found))
	for i, e := range found {
		page.Data[i] = View{e.ID, e.Name, e.Enabled, e.Modes, s.Deployment.summary(e), e.Profile}
	}
	return page, nil
}

// List returns all endpoints of a team, or of all teams if teamID is empty.
func (s *Service) List(ctx context.Context, teamID string) ([]Endpoint, error) {
	all, err := s.Store.Endpoints(ctx, teamID, "", math.MaxInt32)
	if err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return all, nil
}

func parsePage(params map[string][]string) (after string, limit int, err error) {
	var issues fault.Issues
	limit = defaultPageSize
	if s, _ := issues.QueryValue(params, "limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxPageSize {
			issues.Add("/query/limit", fault.IssueValue, "limit must be a number from 1 to %d.", maxPageSize)
		}
	}
	after, _ = issues.QueryValue(params, "cursor")
	issues.Check(after == "" || idPattern.MatchString(after), "/query/cursor", fault.IssueValue, "cursor must be the nextCursor of the previous page.")
	return after, limit, issues.Err()
}
