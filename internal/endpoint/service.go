package endpoint

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
	"telapi/internal/page"
	"telapi/internal/tenant"
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

// AdminView is an endpoint for administrators.
type AdminView struct {
	View
	Origins []string `json:"origins"`
}

// View returns an endpoint as its team sees it.
func (d Deployment) View(e Endpoint) View {
	return View{e.ID, e.Name, e.Enabled, e.Modes, d.summary(e), e.Profile}
}

// AdminView returns an endpoint as administrators see it.
func (d Deployment) AdminView(e Endpoint) AdminView {
	return AdminView{d.View(e), append([]string{}, e.Origins...)}
}

// settings are the members of an endpoint that can change.
type settings struct {
	Name    string              `json:"name"`
	Enabled bool                `json:"enabled"`
	Modes   []Mode              `json:"modes"`
	Origins []string            `json:"origins"`
	Profile wire.GatewayProfile `json:"gatewayProfile"`
}

func (e Endpoint) settings() settings {
	return settings{e.Name, e.Enabled, e.Modes, e.Origins, e.Profile}
}

// TopicPrefix, followed by an endpoint's ID, is announced when the endpoint changes.
const TopicPrefix = "endpoint:"

// Service manages endpoints. List and Capabilities need Deployment; Create, Update
// and Delete need Announce and Now.
type Service struct {
	Store      Store
	Cache      *cache.Cache[Endpoint] // used by Get; nil: it reads the store each time
	Announce   cache.Announcer
	Deployment Deployment
	Now        func() time.Time
}

// The memory of the cache for Get. An endpoint needs about endpointOverhead and a
// multiple of its gateway profile.
const (
	cacheBytes       = 64 << 20
	endpointOverhead = 1 << 10
	profileFactor    = 4
)

// NewCache returns a cache for Get. It needs the announcements of all instances.
func NewCache() *cache.Cache[Endpoint] {
	return cache.New(TopicPrefix, cacheBytes, cache.TTL, func(e Endpoint) (teamID string, size int64) {
		profile, _ := json.Marshal(e.Profile) // it was decoded from JSON
		return e.TeamID, endpointOverhead + profileFactor*int64(len(profile))
	})
}

// Create stores a new endpoint with a new ID.
func (s *Service) Create(ctx context.Context, e Endpoint) (Endpoint, error) {
	id := uuid.Must(uuid.NewV7()) // IDs sort by age
	e.ID, e.CreatedAt = idPrefix+id.String(), s.Now()
	if err := s.prepare(&e); err != nil {
		return Endpoint{}, err
	}
	entry, err := s.entry(ctx, audit.CreateEndpoint, e, nil, e.settings())
	if err == nil {
		err = s.Store.CreateEndpoint(ctx, e, entry)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("create endpoint: %w", err)
	}
	_ = s.Announce.Announce(ctx, TopicPrefix+e.ID) // no instance has cached the endpoint
	return e, nil
}

// Update applies change to an endpoint, unless change fails. Concurrent updates are
// applied one after the other.
func (s *Service) Update(ctx context.Context, id string, change func(*Endpoint) error) (Endpoint, error) {
	e, err := s.Store.UpdateEndpoint(ctx, id, func(e *Endpoint) ([]audit.Entry, error) {
		before := e.settings()
		if err := change(e); err != nil {
			return nil, err
		}
		if err := s.prepare(e); err != nil {
			return nil, err
		}
		entry, err := s.entry(ctx, audit.UpdateEndpoint, *e, before, e.settings())
		if err != nil || entry.Unchanged() {
			return nil, err
		}
		return []audit.Entry{entry}, nil
	})
	if err != nil {
		return Endpoint{}, err
	}
	return e, s.announce(ctx, id)
}

// Delete deletes an endpoint, unless check fails. Its sessions end.
func (s *Service) Delete(ctx context.Context, id string, check func(Endpoint) error) error {
	err := s.Store.DeleteEndpoint(ctx, id, func(e Endpoint) ([]audit.Entry, error) {
		if err := check(e); err != nil {
			return nil, err
		}
		entry, err := s.entry(ctx, audit.DeleteEndpoint, e, e.settings(), nil)
		return []audit.Entry{entry}, err
	})
	if err != nil {
		return err
	}
	return s.announce(ctx, id)
}

func (s *Service) prepare(e *Endpoint) error {
	e.UpdatedAt = s.Now()
	var issues fault.Issues
	e.Check(&issues)
	return issues.Err()
}

func (s *Service) entry(ctx context.Context, action audit.Action, e Endpoint, before, after any) (audit.Entry, error) {
	return audit.New(ctx, s.Now(), action, TopicPrefix+e.ID, e.TeamID, before, after)
}

// announce announces a change. In this process it takes effect before announce
// returns.
func (s *Service) announce(ctx context.Context, id string) error {
	if s.Cache != nil {
		s.Cache.Message(TopicPrefix + id)
	}
	if err := s.Announce.Announce(ctx, TopicPrefix+id); err != nil {
		return fmt.Errorf("the change is saved, but announcing it failed: running instances may use the old values for up to %s: %w", cache.TTL, err)
	}
	return nil
}

// Get returns a team's endpoint. An endpoint of another team is not found: a
// team cannot learn which IDs others have. The caller must not change what the
// endpoint refers to.
func (s *Service) Get(ctx context.Context, teamID, id string) (e Endpoint, err error) {
	if s.Cache != nil {
		e, err = s.Cache.Get(ctx, id, func(ctx context.Context) (Endpoint, error) { return s.Store.Endpoint(ctx, id) })
	} else {
		e, err = s.Store.Endpoint(ctx, id)
	}
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

// List returns one page of a team's endpoints, oldest first. It reads the query
// parameters cursor and limit.
func (s *Service) List(ctx context.Context, teamID string, params map[string][]string) (page.Page[Endpoint], error) {
	var issues fault.Issues
	q := page.Parse(params, validID, &issues)
	if err := issues.Err(); err != nil {
		return page.Page[Endpoint]{}, err
	}
	return page.Read(q, func(q page.Query) ([]Endpoint, error) { return s.Store.Endpoints(ctx, tenant.Only(teamID), q) },
		func(e Endpoint) string { return e.ID })
}
