// Package team manages teams. A team is a tenant: it owns API keys, endpoints, a
// daily quota and usage.
package team

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/internal/cache"
	"telapi/internal/fault"
)

// DefaultDailyQuota is the number of API requests per UTC day of a team without
// its own quota.
const DefaultDailyQuota = 50_000

// Team is one tenant.
type Team struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	DailyQuota *int64    `json:"-"` // see Quota; nil: DefaultDailyQuota
	CreatedAt  time.Time `json:"createdAt"`
}

// Quota returns the number of API requests that the team may make per UTC day.
func (t Team) Quota() int64 {
	if t.DailyQuota == nil {
		return DefaultDailyQuota
	}
	return *t.DailyQuota
}

// Store stores teams. It returns fault.NotFound for an unknown ID.
type Store interface {
	CreateTeam(ctx context.Context, t Team) error
	Team(ctx context.Context, id string) (Team, error)
	Teams(ctx context.Context) ([]Team, error)
	// UpdateTeam changes a team's name and quota. Concurrent updates are applied
	// one after the other.
	UpdateTeam(ctx context.Context, id string, change func(*Team)) (Team, error)
}

// MaxDailyQuota is the largest quota that can be set.
const MaxDailyQuota = 1_000_000_000

const maxNameLength = 100

// topicPrefix, followed by a team's ID, is announced when the team changes.
const topicPrefix = "team:"

// Registry creates and changes teams.
type Registry struct {
	Store    Store
	Announce cache.Announcer
	Now      func() time.Time
}

// Create creates a team.
func (r *Registry) Create(ctx context.Context, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	t := Team{ID: "tm_" + uuid.Must(uuid.NewV7()).String(), Name: name, CreatedAt: r.Now()}
	if err := r.Store.CreateTeam(ctx, t); err != nil {
		return Team{}, fmt.Errorf("create team: %w", err)
	}
	return t, nil
}

// Rename changes a team's name.
func (r *Registry) Rename(ctx context.Context, id, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	return r.Store.UpdateTeam(ctx, id, func(t *Team) { t.Name = name })
}

// SetQuota changes a team's daily quota. nil restores the default. Running
// instances apply the new quota when they receive the announcement.
func (r *Registry) SetQuota(ctx context.Context, id string, quota *int64) (Team, error) {
	var issues fault.Issues
	if quota != nil {
		fault.CheckRange(&issues, "/dailyQuota", *quota, 0, MaxDailyQuota)
	}
	if err := issues.Err(); err != nil {
		return Team{}, err
	}
	t, err := r.Store.UpdateTeam(ctx, id, func(t *Team) { t.DailyQuota = quota })
	if err != nil {
		return Team{}, err
	}
	if err := r.Announce.Announce(ctx, topicPrefix+id); err != nil {
		return Team{}, fmt.Errorf("the quota is saved, but announcing it failed: running instances may use the old quota for up to %s: %w", cache.TTL, err)
	}
	return t, nil
}

func cleanName(name string) (string, error) {
	name = strings.TrimSpace(name)
	var issues fault.Issues
	issues.Check(name != "", "/name", fault.IssueRequired, "The team name is empty.")
	issues.CheckName("/name", name, maxNameLength)
	return name, issues.Err()
}

// Quotas caches the daily quotas of teams.
type Quotas struct {
	*cache.Cache[int64]
	teams Store
}

// NewQuotas returns an empty cache.
func NewQuotas(teams Store) *Quotas {
	return &Quotas{cache.New[int64](topicPrefix, cache.Size, cache.TTL), teams}
}

// ForTeam returns a team's daily quota. A team that exists only in the console has
// the default quota.
func (q *Quotas) ForTeam(ctx context.Context, teamID string) (int64, error) {
	return q.Get(ctx, teamID, func(ctx context.Context) (int64, error) {
		t, err := q.teams.Team(ctx, teamID)
		if fault.Is(err, fault.NotFound) {
			return DefaultDailyQuota, nil
		}
		return t.Quota(), err
	})
}
