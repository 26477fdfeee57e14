// Package team manages teams and their endpoints. A team is a tenant: it owns API keys,
// endpoints, a daily quota and usage. An endpoint is its configuration for conversations.
package team

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/internal/audit"
	"telapi/internal/cache"
	"telapi/internal/fault"
	"telapi/internal/page"
)

// DefaultDailyQuota is the number of API requests per UTC day of a team without
// its own quota.
const DefaultDailyQuota = 50_000

// Team is one tenant.
type Team struct {
	ID         string
	Name       string
	DailyQuota *int64 // see Quota; nil: DefaultDailyQuota
	Disabled   bool   // its credentials are rejected and its sessions have ended
	CreatedAt  time.Time
}

// Quota returns the number of API requests that the team may make per UTC day.
func (t Team) Quota() int64 {
	if t.DailyQuota == nil {
		return DefaultDailyQuota
	}
	return *t.DailyQuota
}

// View is a team for administrators.
type View struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Disabled   bool      `json:"disabled"`
	DailyQuota int64     `json:"dailyQuota"`
	UsedToday  *int64    `json:"usedToday,omitzero"` // requests of this UTC day; nil: unknown
	CreatedAt  time.Time `json:"createdAt"`
}

// View returns the team for administrators.
func (t Team) View(usedToday *int64) View {
	return View{t.ID, t.Name, t.Disabled, t.Quota(), usedToday, t.CreatedAt}
}

// settings are the members of a team that can change.
type settings struct {
	Name       string `json:"name"`
	DailyQuota int64  `json:"dailyQuota"`
	Disabled   bool   `json:"disabled"`
}

// Exists reports whether the team was read from the database.
func (t Team) Exists() bool { return !t.CreatedAt.IsZero() }

func (t Team) settings() settings { return settings{t.Name, t.Quota(), t.Disabled} }

// Check normalizes the name and records every issue.
func (t *Team) Check(issues *fault.Issues) {
	t.Name = strings.TrimSpace(t.Name)
	if t.Name == "" {
		issues.Missing("/name", "The team name is empty.")
	}
	issues.CheckName("/name", t.Name, maxNameLength)
	fault.CheckRange(issues, "/dailyQuota", t.Quota(), 0, MaxDailyQuota)
}

// Store stores teams. It returns fault.NotFound for an unknown ID. It writes audit
// entries in the transaction of the change.
type Store interface {
	CreateTeam(ctx context.Context, t Team, entries ...audit.Entry) error
	Team(ctx context.Context, id string) (Team, error)
	// Teams returns a page of all teams, oldest first.
	Teams(ctx context.Context, q page.Query) ([]Team, error)
	// UpdateTeam changes everything except a team's ID and creation time, unless
	// change fails. Concurrent updates are applied one after the other. Disabling a
	// team revokes its sessions.
	UpdateTeam(ctx context.Context, id string, change func(*Team) ([]audit.Entry, error)) (Team, error)
}

// MaxDailyQuota is the largest quota that can be set.
const MaxDailyQuota = 1_000_000_000

const (
	maxNameLength = 100
	idPrefix      = "tm_"
)

// ValidID reports whether the ID of a team has the right form.
var ValidID = page.UUID(idPrefix)

// TopicPrefix, followed by a team's ID, is announced when the team changes.
const TopicPrefix = "team:"

// Registry creates and changes teams.
type Registry struct {
	Store     Store
	Announcer cache.Announcer
	Now       func() time.Time
}

// Create creates a team from a name, a quota and whether it is disabled.
func (r *Registry) Create(ctx context.Context, t Team) (Team, error) {
	var issues fault.Issues
	t.Check(&issues)
	if err := issues.Err(); err != nil {
		return Team{}, err
	}
	t.ID, t.CreatedAt = idPrefix+uuid.Must(uuid.NewV7()).String(), r.Now()
	entry := audit.New(ctx, r.Now(), audit.CreateTeam, TopicPrefix+t.ID, t.ID, nil, t.settings())
	if err := r.Store.CreateTeam(ctx, t, entry); err != nil {
		return Team{}, fmt.Errorf("create team: %w", err)
	}
	return t, nil // not announced: no instance has cached it
}

// Update applies change to a team, unless change fails. Running instances apply the
// new values when they receive the announcement. A disabled team's credentials are
// rejected and its sessions end.
func (r *Registry) Update(ctx context.Context, id string, change func(*Team) error) (Team, error) {
	t, err := r.Store.UpdateTeam(ctx, id, func(t *Team) ([]audit.Entry, error) {
		before := t.settings()
		if err := change(t); err != nil {
			return nil, err
		}
		var issues fault.Issues
		t.Check(&issues)
		if err := issues.Err(); err != nil || t.settings() == before {
			return nil, err
		}
		return []audit.Entry{audit.New(ctx, r.Now(), audit.UpdateTeam, TopicPrefix+id, id, before, t.settings())}, nil
	})
	if err != nil {
		return Team{}, err
	}
	return t, announce(ctx, r.Announcer, TopicPrefix+id)
}

// announce announces a change that is saved.
func announce(ctx context.Context, a cache.Announcer, topic string) error {
	if err := a.Announce(ctx, topic); err != nil {
		return fmt.Errorf("the change is saved, but announcing it failed: running instances may use the old values for up to %s: %w", cache.TTL, err)
	}
	return nil
}

// Catalog caches teams for the checks of each request.
type Catalog struct {
	*cache.Cache[Team]
	teams Store
}

// NewCatalog returns an empty cache.
func NewCatalog(teams Store) *Catalog {
	one := func(t Team) (teamID string, size int64) { return t.ID, 1 }
	return &Catalog{cache.New(TopicPrefix, cache.Size, one), teams}
}

// Team returns a team. One that does not exist has the default quota, and Exists returns
// false.
func (c *Catalog) Team(ctx context.Context, id string) (Team, error) {
	return c.Get(ctx, id, func(ctx context.Context) (Team, error) {
		t, err := c.teams.Team(ctx, id)
		if fault.Is(err, fault.NotFound) {
			return Team{ID: id}, nil
		}
		return t, err
	})
}
