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
	if err := r.check(&e); err != nil {
		return Endpoint{}, err
	}
	if err := r.Store.CreateEndpoint(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	return e, nil
}

// Update makes a change to an endpoint, which others wait for meanwhile.
func (r *Registry) Update(ctx context.Context, id string, change func(*Endpoint)) (Endpoint, error) {
	return r.Store.UpdateEndpoint(ctx, id, func(e *Endpoint) error {
		change(e)
		return r.check(e)
	})
}

func (r *Registry) check(e *Endpoint) error {
	e.UpdatedAt = r.Now()
	return e.Validate()
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
