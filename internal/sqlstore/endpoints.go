package sqlstore

import (
	"context"

	"telapi/internal/endpoint"
)

var _ endpoint.Store = (*Store)(nil)

const (
	endpointColumns = `id, team_id, name, enabled, modes, origins, profile, created_at, updated_at`

	insertEndpoint    = `INSERT INTO endpoints (` + endpointColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectEndpoint    = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id = $1`
	listEndpoints     = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id > $1 ORDER BY id LIMIT $2`
	listTeamEndpoints = `SELECT ` + endpointColumns + ` FROM endpoints WHERE team_id = $1 AND id > $2 ORDER BY id LIMIT $3`
	lockEndpoint      = `UPDATE endpoints SET name = name WHERE id = $1 RETURNING ` + endpointColumns
	updateEndpoint    = `UPDATE endpoints SET name = $2, enabled = $3, modes = $4, origins = $5, profile = $6, updated_at = $7 WHERE id = $1`
)

func endpointFields(e *endpoint.Endpoint) []any {
	return []any{&e.ID, &e.TeamID, &e.Name, &e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile),
		timestamp{&e.CreatedAt}, timestamp{&e.UpdatedAt}}
}

// CreateEndpoint adds an endpoint to its team.
func (s *Store) CreateEndpoint(ctx context.Context, e endpoint.Endpoint) error {
	return s.exec(ctx, "create", "endpoint", insertEndpoint, endpointFields(&e)...)
}

// Endpoint returns an endpoint of any team.
func (s *Store) Endpoint(ctx context.Context, id string) (endpoint.Endpoint, error) {
	return get(ctx, s, "endpoint", endpointFields, selectEndpoint, id)
}

// Endpoints returns a page of a team's endpoints, or of all endpoints if teamID
// is empty.
func (s *Store) Endpoints(ctx context.Context, teamID, after string, limit int) ([]endpoint.Endpoint, error) {
	if teamID == "" {
		return list(ctx, s, "endpoints", endpointFields, listEndpoints, after, limit)
	}
	return list(ctx, s, "endpoints", endpointFields, listTeamEndpoints, teamID, after, limit)
}

// UpdateEndpoint changes everything except an endpoint's ID, team and creation
// time.
func (s *Store) UpdateEndpoint(ctx context.Context, id string, change func(*endpoint.Endpoint) error) (endpoint.Endpoint, error) {
	return update(ctx, s, "endpoint", endpointFields, lockEndpoint, id, func(e *endpoint.Endpoint) (string, []any, error) {
		fixed := *e
		err := change(e)
		e.ID, e.TeamID, e.CreatedAt = fixed.ID, fixed.TeamID, fixed.CreatedAt
		return updateEndpoint, []any{id, e.Name, e.Enabled, asJSON(&e.Modes), asJSON(&e.Origins), asJSON(&e.Profile), timestamp{&e.UpdatedAt}}, err
	})
}
