package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"telapi/internal/endpoint"
)

var _ endpoint.Store = (*Store)(nil)

const (
	endpointColumns = `id, team_id, name, enabled, modes, origins, profile, created_at, updated_at`

	insertEndpoint    = `INSERT INTO endpoints (` + endpointColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	selectEndpoint    = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id = $1`
	listEndpoints     = `SELECT ` + endpointColumns + ` FROM endpoints WHERE id > $1 ORDER BY id LIMIT $2`
	listTeamEndpoints = `SELECT ` + endpointColumns + ` FROM endpoints WHERE team_id = $1 AND id > $2 ORDER BY id LIMIT $3`
	updateEndpoint    = `UPDATE endpoints SET name = $3, enabled = $4, modes = $5, origins = $6, profile = $7, updated_at = $8 WHERE id = $1 AND team_id = $2`
)

// CreateEndpoint adds an endpoint to its team.
func (s *Store) CreateEndpoint(ctx context.Context, e endpoint.Endpoint) error {
	modes, origins, profile, err := encodeEndpoint(e)
	if err != nil {
		return err
	}
	return s.change(ctx, "create", "endpoint", insertEndpoint, e.ID, e.TeamID, e.Name, e.Enabled,
		modes, origins, profile, millis(e.CreatedAt), millis(e.UpdatedAt))
}

// Endpoint reads one endpoint, whosever it is.
func (s *Store) Endpoint(ctx context.Context, id string) (endpoint.Endpoint, error) {
	return one(ctx, s, "endpoint", scanEndpoint, selectEndpoint, id)
}

// Endpoints lists a page of a team's endpoints, or of everybody's when teamID
// is empty.
func (s *Store) Endpoints(ctx context.Context, teamID, after string, limit int) ([]endpoint.Endpoint, error) {
	if teamID == "" {
		return list(ctx, s, "endpoints", scanEndpoint, listEndpoints, after, limit)
	}
	return list(ctx, s, "endpoints", scanEndpoint, listTeamEndpoints, teamID, after, limit)
}

// UpdateEndpoint changes everything but an endpoint's id, team and age.
func (s *Store) UpdateEndpoint(ctx context.Context, e endpoint.Endpoint) error {
	modes, origins, profile, err := encodeEndpoint(e)
	if err != nil {
		return err
	}
	return s.change(ctx, "update", "endpoint", updateEndpoint, e.ID, e.TeamID, e.Name, e.Enabled,
		modes, origins, profile, millis(e.UpdatedAt))
}

func encodeEndpoint(e endpoint.Endpoint) (modes, origins, profile string, err error) {
	encode := func(v any) string {
		text, failed := json.Marshal(v)
		err = errors.Join(err, failed)
		return string(text)
	}
	modes, origins, profile = encode(e.Modes), encode(e.Origins), encode(e.Profile)
	if err != nil {
		err = fmt.Errorf("encode endpoint: %w", err)
	}
	return modes, origins, profile, err
}

func scanEndpoint(r row) (e endpoint.Endpoint, err error) {
	var modes, origins, profile string
	var created, updated *int64
	if err := r.Scan(&e.ID, &e.TeamID, &e.Name, &e.Enabled, &modes, &origins, &profile, &created, &updated); err != nil {
		return e, err
	}
	err = errors.Join(
		json.Unmarshal([]byte(modes), &e.Modes),
		json.Unmarshal([]byte(origins), &e.Origins),
		json.Unmarshal([]byte(profile), &e.Profile))
	if err != nil {
		return e, fmt.Errorf("endpoint %s is damaged: %w", e.ID, err)
	}
	e.CreatedAt, e.UpdatedAt = moment(created), moment(updated)
	return e, nil
}
