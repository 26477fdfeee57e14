package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Registry is the administrator's side of endpoints.
type Registry struct {
	Store Store
	Now   func() time.Time
}

// Create gives an endpoint its id and switches it on.
func (r *Registry) Create(ctx context.Context, e Endpoint) (Endpoint, error) {
	id := uuid.Must(uuid.NewV7()) // so that ids sort by age
	e.ID, e.Enabled, e.CreatedAt = idPrefix+id.String(), true, r.Now()
	return r.save(ctx, e, r.Store.CreateEndpoint)
}

// Update makes a change to an endpoint.
func (r *Registry) Update(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error) {
	e, err := r.Store.Endpoint(ctx, id)
	if err == nil {
		err = change(&e)
	}
	if err != nil {
		return Endpoint{}, err
	}
	return r.save(ctx, e, r.Store.UpdateEndpoint)
}

func (r *Registry) save(ctx context.Context, e Endpoint, write func(context.Context, Endpoint) error) (Endpoint, error) {
	e.UpdatedAt = r.Now()
	if err := e.Validate(); err != nil {
		return Endpoint{}, err
	}
	if err := write(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("save endpoint: %w", err)
	}
	return e, nil
}

// List returns all endpoints of a team, or everybody's when teamID is empty.
func (r *Registry) List(ctx context.Context, teamID string) (all []Endpoint, err error) {
	for after := ""; ; after = all[len(all)-1].ID {
		page, err := r.Store.Endpoints(ctx, teamID, after, maxPage)
		if err != nil {
			return nil, fmt.Errorf("list endpoints: %w", err)
		}
		all = append(all, page...)
		if len(page) < maxPage {
			return all, nil
		}
	}
}
