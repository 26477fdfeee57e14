package team

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/cache"
	"telapi/internal/fault"
)

// EndpointView is an endpoint in a team's list.
type EndpointView struct {
	ID             string               `json:"id"`
	Name           string               `json:"name"`
	Enabled        bool                 `json:"enabled"`
	Modes          []Mode               `json:"modes"`
	Capabilities   EndpointCapabilities `json:"capabilities"`
	GatewayProfile wire.GatewayProfile  `json:"gatewayProfile"`
}

// EndpointAdminView is an endpoint for administrators.
type EndpointAdminView struct {
	EndpointView
	Origins []string `json:"origins"`
}

// View returns an endpoint as its team sees it.
func (d Deployment) View(e Endpoint) EndpointView {
	return EndpointView{e.ID, e.Name, e.Enabled, e.Modes, d.summary(e), e.Profile}
}

// AdminView returns an endpoint as administrators see it.
func (d Deployment) AdminView(e Endpoint) EndpointAdminView {
	return EndpointAdminView{d.View(e), append([]string{}, e.Origins...)}
}

// endpointSettings are the members of an endpoint that can change.
type endpointSettings struct {
	Name    string              `json:"name"`
	Enabled bool                `json:"enabled"`
	Modes   []Mode              `json:"modes"`
	Origins []string            `json:"origins"`
	Profile wire.GatewayProfile `json:"gatewayProfile"`
}

func (e Endpoint) settings() endpointSettings {
	return endpointSettings{e.Name, e.Enabled, e.Modes, e.Origins, e.Profile}
}

// EndpointTopicPrefix, followed by an endpoint's ID, is announced when the endpoint changes.
const EndpointTopicPrefix = "endpoint:"

// EndpointRegistry creates and changes endpoints.
type EndpointRegistry struct {
	Store     EndpointStore
	Announcer cache.Announcer
	Now       func() time.Time
}

// Create stores a new endpoint with a new ID.
func (r *EndpointRegistry) Create(ctx context.Context, e Endpoint) (Endpoint, error) {
	e.ID, e.CreatedAt = endpointIDPrefix+uuid.Must(uuid.NewV7()).String(), r.Now()
	if err := r.prepare(&e); err != nil {
		return Endpoint{}, err
	}
	if err := r.Store.CreateEndpoint(ctx, e, r.entry(ctx, audit.CreateEndpoint, e, nil, e.settings())); err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	return e, nil // not announced: no instance has cached it
}

// Update applies change to an endpoint, unless change fails. Concurrent updates are
// applied one after the other.
func (r *EndpointRegistry) Update(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error) {
	e, err := r.Store.UpdateEndpoint(ctx, id, func(e *Endpoint) ([]audit.Entry, error) {
		before := e.settings()
		if err := change(e); err != nil {
			return nil, err
		}
		if err := r.prepare(e); err != nil {
			return nil, err
		}
		entry := r.entry(ctx, audit.UpdateEndpoint, *e, before, e.settings())
		if entry.Unchanged() {
			return nil, nil
		}
		return []audit.Entry{entry}, nil
	})
	if err != nil {
		return Endpoint{}, err
	}
	return e, announce(ctx, r.Announcer, EndpointTopicPrefix+id)
}

// Delete deletes an endpoint, unless check fails. Its sessions end.
func (r *EndpointRegistry) Delete(ctx context.Context, id string, check func(Endpoint) error) error {
	err := r.Store.DeleteEndpoint(ctx, id, func(e Endpoint) ([]audit.Entry, error) {
		if err := check(e); err != nil {
			return nil, err
		}
		return []audit.Entry{r.entry(ctx, audit.DeleteEndpoint, e, e.settings(), nil)}, nil
	})
	if err != nil {
		return err
	}
	return announce(ctx, r.Announcer, EndpointTopicPrefix+id)
}

func (r *EndpointRegistry) prepare(e *Endpoint) error {
	e.UpdatedAt = r.Now()
	var issues fault.Issues
	e.Check(&issues)
	return issues.Err()
}

func (r *EndpointRegistry) entry(ctx context.Context, action audit.Action, e Endpoint, before, after any) audit.Entry {
	return audit.New(ctx, r.Now(), action, EndpointTopicPrefix+e.ID, e.TeamID, before, after)
}

// EndpointCatalog caches endpoints for the requests of their teams.
type EndpointCatalog struct {
	*cache.Cache[Endpoint]
	Deployment Deployment
	endpoints  EndpointStore
}

// The memory of the cache. An endpoint needs about endpointOverhead and a multiple of
// its gateway profile.
const (
	cacheBytes       = 64 << 20
	endpointOverhead = 1 << 10
	profileFactor    = 4
)

// NewEndpointCatalog returns an empty cache.
func NewEndpointCatalog(endpoints EndpointStore, deployment Deployment) *EndpointCatalog {
	size := func(e Endpoint) (teamID string, size int64) {
		profile, _ := json.Marshal(e.Profile) // it was decoded from JSON
		return e.TeamID, endpointOverhead + profileFactor*int64(len(profile))
	}
	return &EndpointCatalog{cache.New(EndpointTopicPrefix, cacheBytes, size), deployment, endpoints}
}

// Endpoint returns a team's endpoint. An endpoint of another team is not found: a
// team cannot learn which IDs others have. The caller must not change what the
// endpoint refers to.
func (c *EndpointCatalog) Endpoint(ctx context.Context, teamID, id string) (Endpoint, error) {
	e, err := c.Get(ctx, id, func(ctx context.Context) (Endpoint, error) { return c.endpoints.Endpoint(ctx, id) })
	if fault.Is(err, fault.NotFound) || err == nil && e.TeamID != teamID {
		return Endpoint{}, fault.New(fault.NotFound, "Endpoint not found.")
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("get endpoint: %w", err)
	}
	return e, nil
}

// Capabilities returns the JSON document about one of a team's endpoints.
func (c *EndpointCatalog) Capabilities(ctx context.Context, teamID, id string) ([]byte, error) {
	e, err := c.Endpoint(ctx, teamID, id)
	if err != nil {
		return nil, err
	}
	return c.Deployment.endpointCapabilities(e)
}
