package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
)

// Change is what an administrator asks of an endpoint; nil leaves as it is.
type Change struct {
	Name    *string
	Enabled *bool
	Modes   *[]Mode
	Origins *[]string
	Profile *wire.GatewayProfile
}

func (c Change) apply(e *Endpoint) {
	set(&e.Name, c.Name)
	set(&e.Enabled, c.Enabled)
	set(&e.Modes, c.Modes)
	set(&e.Origins, c.Origins)
	set(&e.Profile, c.Profile)
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// Registry is the administrator's side of endpoints.
type Registry struct {
	Store Store
	Now   func() time.Time
}

// Create makes an enabled endpoint.
func (r *Registry) Create(ctx context.Context, teamID string, c Change) (Endpoint, error) {
	id, err := uuid.NewV7() // so that ids sort by age
	if err != nil {
		return Endpoint{}, fmt.Errorf("make endpoint id: %w", err)
	}
	now := r.Now()
	e := Endpoint{ID: idPrefix + id.String(), TeamID: teamID, Enabled: true, CreatedAt: now, UpdatedAt: now}
	c.apply(&e)
	if err := e.Validate(); err != nil {
		return Endpoint{}, err
	}
	if err := r.Store.CreateEndpoint(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	return e, nil
}

// Show returns one endpoint of any team.
func (r *Registry) Show(ctx context.Context, id string) (Endpoint, error) {
	return r.Store.Endpoint(ctx, id)
}

// List returns all endpoints of a team, or everybody's when teamID is empty.
func (r *Registry) List(ctx context.Context, teamID string) ([]Endpoint, error) {
	const step = 200
	var all []Endpoint
	for after := ""; ; after = all[len(all)-1].ID {
		page, err := r.Store.Endpoints(ctx, teamID, after, step)
		if err != nil {
			return nil, fmt.Errorf("list endpoints: %w", err)
		}
		all = append(all, page...)
		if len(page) < step {
			return all, nil
		}
	}
}

// Update changes what c gives.
func (r *Registry) Update(ctx context.Context, id string, c Change) (Endpoint, error) {
	e, err := r.Store.Endpoint(ctx, id)
	if err != nil {
		return Endpoint{}, fmt.Errorf("update endpoint: %w", err)
	}
	c.apply(&e)
	e.UpdatedAt = r.Now()
	if err := e.Validate(); err != nil {
		return Endpoint{}, err
	}
	if err := r.Store.UpdateEndpoint(ctx, e); err != nil {
		return Endpoint{}, fmt.Errorf("update endpoint: %w", err)
	}
	return e, nil
}
