package endpoint

import (
	"context"
	"fmt"
	"strconv"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// View is an endpoint as a team sees it in its list.
type View struct {
	ID             string              `json:"id"`
	Name           string              `json:"name"`
	Enabled        bool                `json:"enabled"`
	Modes          []Mode              `json:"modes"`
	Capabilities   Abilities           `json:"capabilities"`
	GatewayProfile wire.GatewayProfile `json:"gatewayProfile"`
}

// Page is one page of a team's list. NextCursor is empty on the last one.
type Page struct {
	Data       []View  `json:"data"`
	NextCursor *string `json:"nextCursor"`
}

// Directory answers what a team may know about its endpoints.
type Directory struct {
	Store      Store
	Deployment Deployment
}

// List reads the query parameters cursor and limit and returns that page, in
// order of age.
func (d *Directory) List(ctx context.Context, teamID string, params map[string][]string) (Page, error) {
	after, limit, err := pageOf(params)
	if err != nil {
		return Page{}, err
	}
	// One more than asked tells whether there is a next page.
	found, err := d.Store.Endpoints(ctx, teamID, after, limit+1)
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
		page.Data[i] = View{e.ID, e.Name, e.Enabled, e.Modes, d.Deployment.abilities(e), e.Profile}
	}
	return page, nil
}

// Find returns a team's endpoint. Another team's is not found.
func (d *Directory) Find(ctx context.Context, teamID, id string) (Endpoint, error) {
	e, err := d.Store.Endpoint(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && e.TeamID != teamID {
		// One answer: which ids others have is none of a team's business.
		return Endpoint{}, fault.New(fault.NotFound, "There is no such endpoint.")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("find endpoint: %w", err)
	}
	return e, nil
}

// Capabilities is the document about one of a team's endpoints.
func (d *Directory) Capabilities(ctx context.Context, teamID, id string) (Document, error) {
	e, err := d.Find(ctx, teamID, id)
	if err != nil {
		return Document{}, err
	}
	return d.Deployment.describe(e)
}

func pageOf(params map[string][]string) (after string, limit int, err error) {
	var issues fault.Issues
	limit = defaultPage
	if s, _ := issues.QueryValue(params, "limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > maxPage {
			issues.Add("/query/limit", fault.IssueValue, "limit is a number from 1 to %d.", maxPage)
		}
	}
	if after, _ = issues.QueryValue(params, "cursor"); after != "" && !idForm.MatchString(after) {
		issues.Add("/query/cursor", fault.IssueValue, "Use nextCursor of the previous page as it came.")
	}
	return after, limit, issues.Err()
}
